// The tensors that a region was given, saved through autograd, and the check that they are still
// what forward saw.
#pragma once

#include <reprise/checkpoint.h>

#include <string>

#include "libtorch/autograd/saved_tensor.h"
#include "region/metadata.h"

namespace reprise::region {

class Arguments {
 public:
  // Saves `tensors` (hooks in force apply). `allow_changes`: for a function that only writes to
  // them.
  Arguments(at::TensorList tensors, bool allow_changes);

  // The function writes to its arguments, by option.
  bool may_change() const { return allow_changes_; }

  // Forward is over: looks whether the function itself has changed an argument in place.
  void end_forward();

  // The tensors for a recomputation of `call`, whose region is `name`. Refuses by the call, naming
  // the argument, if one was changed.
  detail::Tensors unpack(const detail::RegionCall& call, const std::string& name) const;

  // There will be no recomputation any more.
  void drop() { entries_.clear(); }

 private:
  struct Entry {
    libtorch::SavedTensor saved;
    Metadata metadata;
    bool changed_by_region = false;

    explicit Entry(const at::Tensor& tensor)
        : saved(tensor), metadata(tensor.defined() ? Metadata::of(tensor) : Metadata()) {}
  };
  at::Tensor unpack(std::size_t index, const detail::RegionCall& call,
                    const std::string& name) const;

  c10::SmallVector<Entry, 1> entries_;
  bool allow_changes_ = false;
};

}  // namespace reprise::region
