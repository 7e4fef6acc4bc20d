#include "selective/function_effects.h"

#include <ATen/Context.h>

#include <algorithm>
#include <utility>

#include "libtorch/base/thread_state.h"

namespace reprise::selecting {

std::shared_ptr<FunctionEffects> FunctionEffects::of(const std::function<void()>& function) {
  const auto effects = std::make_shared<FunctionEffects>();
  // The CPU's generator is watched by its state: observers are not told of it.
  const at::Generator& of_cpu = at::globalContext().defaultGenerator(c10::kCPU);
  const RandomState before = RandomState::of_generators({&of_cpu, 1});
  {
    const libtorch::FreshMemory fresh;
    effects->mark_ = fresh.mark();
    auto state = libtorch::copy_of_current_state();
    const libtorch::EffectScope watching(*state, effects);
    const libtorch::ThreadStateScope in_force(std::move(state));
    function();
  }
  if (!before.is_current()) effects->drawn_.push_back({of_cpu, {}});
  for (Drawn& drawn : effects->drawn_) {
    drawn.after = RandomState::of_generators({&drawn.generator, 1});
  }
  return effects;
}

bool FunctionEffects::before_write(const at::Tensor& tensor) {
  const libtorch::Age age = mark_.age_of(*tensor.storage().unsafeGetStorageImpl());
  std::lock_guard<std::mutex> lock(mutex_);
  wrote_ = wrote_ || age != libtorch::Age::kFresh;
  surely_wrote_ = surely_wrote_ || age == libtorch::Age::kOlder;
  return false;
}

bool FunctionEffects::before_draw(const at::Generator& generator) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const Drawn& drawn) { return drawn.generator == generator; };
  if (std::none_of(drawn_.begin(), drawn_.end(), is_it)) drawn_.push_back({generator, {}});
  return false;
}

}  // namespace reprise::selecting
