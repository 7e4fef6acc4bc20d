// What a comparison has measured, in the pieces that commands print.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/reprise/comparison.h"
#include "apps/reprise/figures.h"
#include "apps/reprise/text_data.h"

namespace reprise::app {

// An interruption may have left nothing of a strategy.
bool is_shown(const Measured& each);

// "yes" or "no" of its gradients being the plain step's, or how it failed.
std::string verdict_of(const Measured& each);
std::string percent(double part);  // "12 %"

// What is there: a strategy that failed, or was interrupted, lacks some of it.
nlohmann::json json_of(const Measured& each, const Measured& plain);

// The model, the data and the machine.
Facts facts_of(const CompareOptions& options, Network& network, const TextData& data);

}  // namespace reprise::app
