// What the tests of saved-tensor hooks share: hooks that give back what they were given, or a copy
// of it, and count what autograd asks of them.
#pragma once

#include <reprise/saved_tensor_hooks.h>

#include <atomic>
#include <memory>

#include "tests/region/testing.h"

namespace reprise::testing {

struct HookCounts {
  std::atomic<int> packs = 0;
  std::atomic<int> unpacks = 0;
  // Packed tensors that exist: what is left here after a graph has gone is leaked.
  std::atomic<int> alive = 0;
};

class CountedPackedTensor final {
 public:
  CountedPackedTensor(HookCounts& counts, at::Tensor tensor)
      : counts_(counts), tensor_(std::move(tensor)) {
    ++counts_.packs;
    ++counts_.alive;
  }
  ~CountedPackedTensor() { --counts_.alive; }
  CountedPackedTensor(const CountedPackedTensor&) = delete;
  CountedPackedTensor& operator=(const CountedPackedTensor&) = delete;
  at::Tensor unpack() {
    ++counts_.unpacks;
    return tensor_;
  }

 private:
  HookCounts& counts_;
  at::Tensor tensor_;
};

enum class Keeps {
  kTensor,  // the tensor itself
  kCopy,    // a copy, with memory of its own
};

class CountingHooks final : public SavedTensorHooksScope {
 public:
  explicit CountingHooks(HookCounts& counts, Keeps keeps = Keeps::kTensor)
      : SavedTensorHooksScope(
            [&counts, keeps](const at::Tensor& tensor) {
              return std::make_unique<CountedPackedTensor>(
                  counts, keeps == Keeps::kCopy ? tensor.clone() : tensor);
            },
            [](const std::unique_ptr<CountedPackedTensor>& packed) { return packed->unpack(); }) {}
};

}  // namespace reprise::testing
