#include "region/texts.h"

#include <reprise/error.h>

#include <exception>

namespace reprise::region {
namespace {

void append(std::string& text, const char* title, const std::vector<std::string>& lines) {
  text += title;
  for (std::size_t i = 0; i < lines.size(); ++i)
    text += "\n  " + std::to_string(i) + ": " + lines[i];
  if (lines.empty()) text += "\n  (none)";
}

}  // namespace

std::string name_of_region(const std::string& name) {
  return name.empty() ? "checkpoint()" : "checkpoint() of region '" + name + "'";
}

std::string changed_argument(const std::string& region, std::size_t index, const Metadata& metadata,
                             const std::string& how) {
  return name_of_region(region) + ": tensor argument " + std::to_string(index) + " (" +
         metadata.describe() + ") was changed in place " + how +
         ", so the recomputation would start from other values than forward did. Pass a clone";
}

const char* const kDebugHint =
    "\nThe function must do the same operators on the same values each time it runs. Set "
    "CheckpointOptions::debug, or open a CheckpointDebugScope around forward, to see the operators "
    "of both runs.";

void rethrow_for_engine(const std::string& name) {
  try {
    throw;
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    throw Error(name_of_region(name) +
                ": the function threw something that is no std::exception when it was run again in "
                "backward; throw a std::exception");
  }
}

std::string traces(const std::vector<std::string>& forward,
                   const std::vector<std::string>& recompute) {
  std::string text;
  append(text, "\nOperators that ran in forward:", forward);
  append(text, "\nOperators that ran during recomputation:", recompute);
  std::size_t common = 0;
  while (common < forward.size() && common < recompute.size() &&
         forward[common] == recompute[common]) {
    ++common;
  }
  // An early stop cuts the second list short; that alone is no difference.
  if (common < recompute.size()) {
    text += "\nThe two runs differ from operator " + std::to_string(common) + " on.";
  }
  return text;
}

}  // namespace reprise::region
