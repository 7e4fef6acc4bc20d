// Copying and comparing in place. LibTorch's accessors return the engine by value, 2.5 KB copied
// twice; so the two private members are named through an explicit instantiation, where the language
// lifts access checks. A LibTorch that renames them does not compile here, rather than misbehave.
#include "libtorch/random/cpu_generator_state.h"

#include <cstring>
#include <mutex>
#include <typeinfo>

namespace reprise::libtorch {

namespace {

at::mt19937& engine_of(at::CPUGeneratorImpl& generator);
at::mt19937_data_pod& words_of(at::mt19937& engine);

template <auto kMember>
struct RevealEngine {
  friend at::mt19937& engine_of(at::CPUGeneratorImpl& generator) { return generator.*kMember; }
};
template struct RevealEngine<&at::CPUGeneratorImpl::engine_>;

template <auto kMember>
struct RevealWords {
  friend at::mt19937_data_pod& words_of(at::mt19937& engine) { return engine.*kMember; }
};
template struct RevealWords<&at::mt19937::data_>;

at::mt19937_data_pod& state_of(at::CPUGeneratorImpl& generator) {
  return words_of(engine_of(generator));
}

}  // namespace

namespace {
thread_local std::uint64_t restores = 0;
}  // namespace

std::uint64_t count_of_restores() { return restores; }
void count_restore() { ++restores; }

bool is_plain_cpu_generator(const at::Generator& generator) {
  const c10::GeneratorImpl& implementation = *generator.unsafeGetGeneratorImpl();
  return typeid(implementation) == typeid(at::CPUGeneratorImpl);
}

CpuGeneratorState::CpuGeneratorState(at::CPUGeneratorImpl& generator) {
  std::lock_guard lock(generator.mutex_);
  engine_ = state_of(generator);
  float_normal_ = generator.next_float_normal_sample();
  double_normal_ = generator.next_double_normal_sample();
}

void CpuGeneratorState::restore(at::CPUGeneratorImpl& generator) const {
  std::lock_guard lock(generator.mutex_);
  state_of(generator) = engine_;
  generator.set_next_float_normal_sample(float_normal_);
  generator.set_next_double_normal_sample(double_normal_);
}

bool CpuGeneratorState::is_current(at::CPUGeneratorImpl& generator) const {
  std::lock_guard lock(generator.mutex_);
  const at::mt19937_data_pod& now = state_of(generator);
  // Any draw moves the position, but for whole multiples of 624 words, after which all words
  // differ: the first sixteen tell, but for one chance in 2^512.
  return now.left_ == engine_.left_ && now.next_ == engine_.next_ && now.seed_ == engine_.seed_ &&
         now.seeded_ == engine_.seeded_ && generator.next_float_normal_sample() == float_normal_ &&
         generator.next_double_normal_sample() == double_normal_ &&
         std::memcmp(now.state_.data(), engine_.state_.data(), 16 * sizeof engine_.state_[0]) == 0;
}

}  // namespace reprise::libtorch
