// Prints what a comparison has measured, in the pieces that several commands share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/cli/compare/comparison.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/training/text_data.h"

namespace reprise::app {

// False if an interruption has left nothing of a strategy.
bool is_shown(const Measured& each);

// "yes" or "no": whether the gradients are the plain step's; or how the strategy failed.
std::string verdict_of(const Measured& each);
std::string percent(double part);  // "12 %"

// The range over the rounds of a step's time, in multiples of the plain step's.
struct Spread {
  double lowest = 0, highest = 0;
};
Spread spread_of(const Measured& each, const Measured& plain);

// A strategy that failed, or was interrupted, lacks some of the fields.
nlohmann::json json_of(const Measured& each, const Measured& plain);

// The fields that describe a comparison as a whole; rows go beside them.
nlohmann::json head_of(const CompareOptions& options, Comparison& comparison,
                       const Measured& plain);

// The model, the data, the machine, and the peak that shares refer to.
Facts facts_of(const CompareOptions& options, Comparison& comparison, const TextData& data);

// A line for each budget that was too small, with the reason.
std::string misfits_of(const std::vector<Measured>& all);

}  // namespace reprise::app
