// Heuristics by the names under which tests list them.
#pragma once

#include <memory>
#include <string_view>

#include "plan/simulate/heuristic.h"

namespace reprise::plan {

inline std::unique_ptr<EvictionHeuristic> heuristic_named(std::string_view name) {
  return make_heuristic(parse_heuristic(name));
}

}  // namespace reprise::plan
