// The wording of the errors that several parts of a region throw.
#pragma once

#include <string>
#include <vector>

namespace reprise::region {

// "checkpoint()", or "checkpoint() of region 'block 3'".
std::string name_of_region(const std::string& name);

// What to try when forward and recomputation disagree and no operator trace was recorded.
extern const char* const kDebugHint;

// Rethrows the exception being handled, as one that autograd's engine can carry: it knows only
// those that derive from std::exception.
[[noreturn]] void rethrow_for_engine(const std::string& name);

// The operators of both runs, set side by side for a reader.
std::string traces(const std::vector<std::string>& forward,
                   const std::vector<std::string>& recompute);

}  // namespace reprise::region
