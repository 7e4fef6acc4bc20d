#include "region/arguments.h"

#include <reprise/error.h>

#include "region/texts.h"

namespace reprise::region {

Arguments::Arguments(at::TensorList tensors, const CheckpointOptions& options)
    : region_(options.name), allow_changes_(options.allow_changed_arguments) {
  entries_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    entries_.push_back({libtorch::SavedTensor(tensor), false});
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
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!allow_changes_) {
      if (entry.changed_by_region) fail(i, "was changed in place by the region's own function");
      if (const auto changes = entry.saved.changes().value_or(0); changes != 0) {
        fail(i, "was changed in place " + std::to_string(changes) +
                    (changes == 1 ? " time" : " times") + " between forward and the recomputation");
      }
      tensors.push_back(entry.saved.unpack());
    } else {
      tensors.push_back(entry.saved.unpack_changed());
    }
  }
  return tensors;
}

void Arguments::fail(std::size_t index, const std::string& what) const {
  const Metadata metadata = Metadata::of(entries_[index].saved.unpack_changed());
  throw DeterminismError(
      name_of_region(region_) + ": tensor argument " + std::to_string(index) + " (" +
      metadata.describe() + ") " + what +
      ", so the recomputation would start from other values than forward did. Pass a "
      "clone, use the out-of-place operator, or set "
      "CheckpointOptions::allow_changed_arguments if the function only writes to it.");
}

}  // namespace reprise::region
