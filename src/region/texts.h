// The wording of the errors that several parts of a region throw.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "region/metadata.h"

namespace reprise::region {

// "checkpoint()", or "checkpoint() of region 'block 3'".
std::string name_of_region(const std::string& name);

// A tensor argument that `how` ("by the region's own function") was changed in place. Ends on "Pass
// a clone", for the caller to name the other remedies.
std::string changed_argument(const std::string& region, std::size_t index, const Metadata& metadata,
                             const std::string& how);

// What to try when forward and recomputation disagree and no operator trace was recorded.
extern const char* const kDebugHint;

// Rethrows the exception being handled, as one that autograd's engine can carry: it knows only
// those that derive from std::exception.
[[noreturn]] void rethrow_for_engine(const std::string& name);

// The operators of both runs, set side by side for a reader.
std::string traces(const std::vector<std::string>& forward,
                   const std::vector<std::string>& recompute);

}  // namespace reprise::region
