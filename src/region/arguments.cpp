#include "region/arguments.h"

#include <reprise/error.h>

#include "region/texts.h"

namespace reprise::region {

Arguments::Arguments(at::TensorList tensors, const CheckpointOptions& options)
    : region_(options.name), allow_changes_(options.allow_changed_arguments) {
  entries_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    entries_.push_back({libtorch::SavedTensor(tensor),
                        tensor.defined() ? Metadata::of(tensor) : Metadata(), false});
  }
}

void Arguments::end_forward() {
  for (Entry& entry : entries_) {
    if (entry.saved.changes().value_or(0) == 0) continue;
    // The argument's history now comes from inside the region: keeping it would be a reference
    // cycle.
    entry.changed_by_region = true;
    entry.saved.adopt_changes();
  }
}

detail::Tensors Arguments::unpack() const {
  detail::Tensors tensors;
  tensors.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) tensors.push_back(unpack(i));
  return tensors;
}

at::Tensor Arguments::unpack(std::size_t index) const {
  const Entry& entry = entries_[index];
  if (allow_changes_) return entry.saved.unpack_changed();
  if (entry.changed_by_region) fail(index, "was changed in place by the region's own function");
  if (const auto changes = entry.saved.changes().value_or(0); changes != 0) {
    fail_changed(index, changes);
  }
  const std::int64_t behind_hook = entry.saved.changes_behind_hook();
  try {
    at::Tensor tensor = entry.saved.unpack();
    if (behind_hook != 0 && entry.saved.is_original(tensor)) fail_changed(index, behind_hook);
    return tensor;
  } catch (const c10::Error&) {
    // A hook that checks for itself says less about where the tensor is needed.
    if (behind_hook != 0) fail_changed(index, behind_hook);
    throw;
  }
}

void Arguments::fail_changed(std::size_t index, std::int64_t changes) const {
  fail(index, "was changed in place " + std::to_string(changes) +
                  (changes == 1 ? " time" : " times") + " between forward and the recomputation");
}

void Arguments::fail(std::size_t index, const std::string& what) const {
  throw DeterminismError(
      name_of_region(region_) + ": tensor argument " + std::to_string(index) + " (" +
      entries_[index].metadata.describe() + ") " + what +
      ", so the recomputation would start from other values than forward did. Pass a "
      "clone, use the out-of-place operator, or set "
      "CheckpointOptions::allow_changed_arguments if the function only writes to it.");
}

}  // namespace reprise::region
