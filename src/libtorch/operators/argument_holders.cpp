// A thread of its own asks: modes, keys and interceptors of the thread that wants to know (it is
// itself inside a call, mostly) would add holders of theirs, or keep the call from being seen.
#include "libtorch/operators/argument_holders.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <memory>
#include <thread>

#include "libtorch/operators/operator_interceptor.h"

namespace reprise::libtorch {
namespace {

// Counts, and answers: nothing is to be computed.
class HolderCount final : public OperatorInterceptor {
 public:
  void intercept(OperatorCall& call) override {
    const c10::IValue& first = call.arguments()[0];
    found_ = first.toTensor().use_count();
    const c10::IValue other = call.arguments()[1];
    call.answer({other});
  }
  std::size_t found() const { return found_; }

 private:
  std::size_t found_ = 0;
};

std::size_t count_on_this_thread() {
  // As the engine adds: nothing is recorded, and no reference but one's own.
  const c10::AutoGradMode without_graph(false);
  const at::Tensor sum = at::detail::empty_strided_meta({1}, {1}, at::kFloat);
  const at::Tensor other = at::detail::empty_strided_meta({1}, {1}, at::kFloat);
  const auto count = std::make_shared<HolderCount>();
  {
    const OperatorInterceptorScope scope(count);
    at::add(sum, other);
  }
  TORCH_INTERNAL_ASSERT(count->found() > 0, "an interceptor did not see a call of add");
  return count->found();
}

}  // namespace

std::size_t count_holders_of_an_argument() {
  std::size_t found = 0;
  std::exception_ptr error;
  std::thread([&] {
    try {
      found = count_on_this_thread();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
  return found;
}

std::size_t holders_of_an_argument() {
  static const std::size_t found = count_holders_of_an_argument();
  return found;
}

}  // namespace reprise::libtorch
