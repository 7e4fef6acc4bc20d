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

class CountedPackedTensor final : public PackedTensor {
 public:
  CountedPackedTensor(HookCounts& counts, at::Tensor tensor)
      : counts_(counts), tensor_(std::move(tensor)) {
    ++counts_.packs;
    ++counts_.alive;
  }
  ~CountedPackedTensor() override { --counts_.alive; }
  at::Tensor unpack() override {
    ++counts_.unpacks;
    return tensor_;
  }

 private:
  HookCounts& counts_;
  at::Tensor tensor_;
};

// Keeps the tensor itself.
inline SavedTensorHooks::Packer identity(HookCounts& counts) {
  return [&counts](const at::Tensor& tensor) {
    return std::make_unique<CountedPackedTensor>(counts, tensor);
  };
}

// Keeps a copy, with memory of its own.
inline SavedTensorHooks::Packer copying(HookCounts& counts) {
  return [&counts](const at::Tensor& tensor) {
    return std::make_unique<CountedPackedTensor>(counts, tensor.clone());
  };
}

}  // namespace reprise::testing
