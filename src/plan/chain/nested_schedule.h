// A schedule as regions inside regions: what it runs again, and what in that again.
#pragma once

#include <reprise/chain.h>

#include <cstdint>
#include <vector>

namespace reprise::plan {

struct Nest;

// One after another: stages that are kept, and runs of stages that are run again as a whole.
using Nests = std::vector<Nest>;

struct Nest {
  std::int32_t stage = 0;  // kept, unless there is something in `again`
  bool is_offloaded = false;
  Nests again;  // how the stages are run before their backward; `stage` is the first
};

// Throws PlanError, naming the step, for a schedule that is not of that form: stages [s, t] are
// either s kept and then [s + 1, t], or [s, u - 1] not kept, then [u, t], then [s, u - 1] anew.
Nests nests_of(const Schedule& schedule, std::int64_t stages);

}  // namespace reprise::plan
