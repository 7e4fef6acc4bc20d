// A lossy tier's part of a Pgac's state, as JSON.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

#include "influence/lossy_tier.h"
#include "plan/io/json_tree.h"

namespace reprise::influence {

nlohmann::ordered_json lossy_json(const LossyTier::State& state);
// Of so many layers.
LossyTier::State read_lossy(const plan::JsonTree& tree, std::size_t count);

}  // namespace reprise::influence
