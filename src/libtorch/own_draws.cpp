#include "libtorch/own_draws.h"

#include <ATen/CPUGeneratorImpl.h>

#include <utility>

#include "libtorch/cpu_generator_state.h"

namespace reprise::libtorch {

bool OwnDraws::are_possible(const OperatorFacts& facts, const at::Generator& generator) {
  return facts.generator != OperatorFacts::kNone && is_plain_cpu_generator(generator);
}

OwnDraws::OwnDraws(OperatorCall& call, const OperatorFacts& facts, at::Generator generator)
    : generator_(std::move(generator)), lock_(generator_.mutex()), before_(generator_.clone()) {
  if (!call.is_last()) {
    lock_.unlock();
    return;
  }
  own_ = before_.clone();
  call.replace_argument(static_cast<std::size_t>(facts.generator), own_);
}

// However the call ended: as its own generator would have been.
OwnDraws::~OwnDraws() {
  if (!own_.defined()) return;
  auto& to = *generator_.get<at::CPUGeneratorImpl>();
  auto& from = *own_.get<at::CPUGeneratorImpl>();
  to.set_engine(from.engine());
  to.set_next_float_normal_sample(from.next_float_normal_sample());
  to.set_next_double_normal_sample(from.next_double_normal_sample());
}

}  // namespace reprise::libtorch
