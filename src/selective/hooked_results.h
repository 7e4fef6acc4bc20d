// Kept results that go through the program's hooks on saved tensors, as what autograd saves does
// (SelectiveOptions::respect_saved_tensors_hooks). To the region they are parked tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/store.h>

#include <memory>

#include "libtorch/base/thread_state.h"

namespace reprise::selecting {

// Shows the value of `tensor` to the innermost hook scope of the program around the caller, past
// all regions. Null if there is none or the scope keeps the tensor as it is. With `is_private`,
// each load() gives memory of its own, which may be changed in place.
std::shared_ptr<ParkedTensor> pack_by_hooks(const at::Tensor& tensor, bool is_private);

// Autograd saves tensors past all regions inside this scope: to the program's hooks, or to none.
class PastRegionsScope {
 public:
  explicit PastRegionsScope(bool to_program_hooks);

 private:
  libtorch::ThreadStateScope in_force_;
};

}  // namespace reprise::selecting
