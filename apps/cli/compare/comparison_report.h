// What a comparison has measured, in the pieces that commands print.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/cli/compare/comparison.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/training/text_data.h"

namespace reprise::app {

// An interruption may have left nothing of a strategy.
bool is_shown(const Measured& each);

// "yes" or "no" of its gradients being the plain step's, or how it failed.
std::string verdict_of(const Measured& each);
std::string percent(double part);  // "12 %"

// Of a step's time as multiples of the plain step's, over the rounds.
struct Spread {
  double lowest = 0, highest = 0;
};
Spread spread_of(const Measured& each, const Measured& plain);

// Of `sum` over so many steps under a budget: the means that a step comes to.
nlohmann::json per_step(const reprise::StepReport& sum, std::size_t steps);

// What is there: a strategy that failed, or was interrupted, lacks some of it.
nlohmann::json json_of(const Measured& each, const Measured& plain);

// The model, the data, the machine, and what shares are of, if there were any.
Facts facts_of(const CompareOptions& options, Comparison& comparison, const TextData& data);

// A line for each budget that was too small, with the reason.
std::string misfits_of(const std::vector<Measured>& all);

}  // namespace reprise::app
