// What a custom autograd function did besides computing its results: whether it wrote to memory
// that it did not make, and which generators it drew from. Such writes cannot be kept in place of a
// run; draws can, by the state in which they left their generators.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "libtorch/memory/fresh_memory.h"
#include "libtorch/operators/operator_effects.h"
#include "selective/kept_results.h"

namespace reprise::selecting {

class FunctionEffects final : public libtorch::EffectObserver {
 public:
  // Runs the function.
  static std::shared_ptr<FunctionEffects> of(const std::function<void()>& function);

  // Where the age of memory is not known (accelerators), a write may have been to the function's
  // own.
  bool wrote() const { return wrote_; }
  bool surely_wrote() const { return surely_wrote_; }
  const std::vector<Drawn>& drawn() const { return drawn_; }

  bool before_write(const at::Tensor& tensor) override;
  bool before_draw(const at::Generator& generator) override;

 private:
  libtorch::FreshMemory::Mark mark_;
  std::mutex mutex_;
  bool wrote_ = false;
  bool surely_wrote_ = false;
  std::vector<Drawn> drawn_;
};

}  // namespace reprise::selecting
