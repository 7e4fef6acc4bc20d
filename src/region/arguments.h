// The tensors that a region was given, saved through autograd, and the check that they are still
// what forward saw.
#pragma once

#include <reprise/checkpoint.h>

#include <string>

#include "libtorch/saved_tensor.h"
#include "region/metadata.h"

namespace reprise::region {

class Arguments {
 public:
  Arguments() = default;
  // Saves `tensors` (hooks in force apply). `region` and `allow_changes` are the options of the
  // region.
  Arguments(at::TensorList tensors, const CheckpointOptions& options);

  // Forward is over: looks whether the function itself has changed an argument in place.
  void end_forward();

  // The tensors for a recomputation. Throws DeterminismError, naming the argument, if one was
  // changed.
  detail::Tensors unpack() const;

 private:
  struct Entry {
    libtorch::SavedTensor saved;
    Metadata metadata;
    bool changed_by_region = false;
  };
  at::Tensor unpack(std::size_t index) const;
  [[noreturn]] void fail_changed(std::size_t index, std::int64_t changes) const;
  [[noreturn]] void fail(std::size_t index, const std::string& what) const;

  c10::SmallVector<Entry, 1> entries_;
  std::string region_;
  bool allow_changes_ = false;
};

}  // namespace reprise::region
