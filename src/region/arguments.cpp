#include "region/arguments.h"

#include <reprise/error.h>

#include "region/foreign.h"
#include "region/texts.h"

namespace reprise::region {

Arguments::Arguments(at::TensorList tensors, bool allow_changes) : allow_changes_(allow_changes) {
  entries_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) entries_.emplace_back(tensor);
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

detail::Tensors Arguments::unpack(const detail::RegionCall& call, const std::string& name) const {
  detail::Tensors tensors;
  tensors.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) tensors.push_back(unpack(i, call, name));
  return tensors;
}

at::Tensor Arguments::unpack(std::size_t index, const detail::RegionCall& call,
                             const std::string& name) const {
  const Entry& entry = entries_[index];
  if (allow_changes_) return entry.saved.unpack_changed();
  const auto fail = [&](const std::string& what) {
    refuse(call, {.kind = Mismatch::Kind::kChangedArgument,
                  .text = changed_argument(name, index, entry.metadata, what) +
                          ", use the out-of-place operator, or set "
                          "CheckpointOptions::allow_changed_arguments if the function only "
                          "writes to it."});
  };
  const auto fail_changed = [&](std::int64_t changes) {
    fail(std::to_string(changes) + (changes == 1 ? " time" : " times") +
         " between forward and the recomputation");
  };
  if (entry.changed_by_region) fail("inside the region's own function");
  if (const auto changes = entry.saved.changes().value_or(0); changes != 0) fail_changed(changes);
  const std::int64_t behind_hook = entry.saved.changes_behind_hook();
  try {
    at::Tensor tensor = entry.saved.unpack();
    if (behind_hook != 0 && entry.saved.is_original(tensor)) fail_changed(behind_hook);
    return tensor;
  } catch (const c10::Error&) {
    // A hook that checks for itself says less about where the tensor is needed.
    if (behind_hook != 0) fail_changed(behind_hook);
    throw;
  }
}

}  // namespace reprise::region
