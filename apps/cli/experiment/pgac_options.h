// Pgac's options as an experiment's methods name them.
#pragma once

#include <reprise/experimental/pgac.h>

#include <cstdint>
#include <string>

namespace reprise::app {

struct ExperimentSettings;

// Of "pgac:R" and "random", with parameters after commas:
//
// | q, alpha  | numbers, as PgacOptions has them                                        |
// | gamma     | constant, linear or cosine (from 1.5 to 0.5), learned                   |
// | fill      | yes or no                                                               |
// | far, error| of pgac:lossy: LossyOptions::int4_threshold and gradient_error                     |
//
// Without a budget, which the run gives. Throws UsageError, naming the method and the parameter,
// for anything else, and as Pgac does.
PgacOptions pgac_options(const std::string& method, const ExperimentSettings& settings,
                         std::uint64_t seed);

}  // namespace reprise::app
