#include "apps/cli/experiment/pgac_options.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/experiment/settings.h"
#include "apps/cli/io/option_group.h"

namespace reprise::app {

namespace {

// Small models have small activations.
constexpr Bytes kLeastParked = KiB(16);
// Early steps discard more, as the proposal suggests.
constexpr double kGammaFirst = 1.5, kGammaLast = 0.5;

std::vector<std::string> parts_between_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    if (comma == text.size()) return parts;
    text.remove_prefix(comma + 1);
  }
}

PgacOptions named_pgac(const std::string& name, const ExperimentSettings& settings) {
  PgacOptions options;
  options.fills_budget = name != "pgac:text" && name != "pgac:lossy";
  if (name == "pgac:cost") options.ranking = PgacRanking::kCost;
  if (name == "pgac:product") options.ranking = PgacRanking::kInfluenceTimesCost;
  if (name == "random") options.ranking = PgacRanking::kRandom;
  if (name == "pgac:lossy") {
    options.lossy = LossyOptions{.gradient_error = settings.gradient_error};
    options.lossy->minimum = kLeastParked;
  }
  return options;
}

GammaSchedule named_gamma(const std::string& method, const std::string& value) {
  const std::map<std::string, GammaSchedule> known = {
      {"constant", GammaSchedule::constant(1)},
      {"linear", GammaSchedule::linear(kGammaFirst, kGammaLast)},
      {"cosine", GammaSchedule::cosine(kGammaFirst, kGammaLast)},
      {"learned", GammaSchedule::learned(1)}};
  const auto found = known.find(value);
  if (found != known.end()) return found->second;
  throw UsageError(fmt::format(
      "method '{}': gamma is '{}'; choose constant, linear, cosine or learned", method, value));
}

void set_parameter(PgacOptions& options, const std::string& method, const std::string& given) {
  const std::size_t equals = std::min(given.find('='), given.size());
  const std::string name = given.substr(0, equals);
  const std::string value = given.substr(std::min(equals + 1, given.size()));
  const std::string where = fmt::format("method '{}': {}", method, name);
  const auto number = [&](RealRange range) { return read_real(where, value, range); };
  if (name == "q") {
    options.quantile = number({0, 1});
  } else if (name == "alpha") {
    options.alpha = number({0, 0.999999});
  } else if (name == "gamma") {
    options.gamma = named_gamma(method, value);
  } else if (name == "fill" && (value == "yes" || value == "no")) {
    options.fills_budget = value == "yes";
  } else if (name == "search" && (value == "yes" || value == "no")) {
    options.searches = value == "yes";
  } else if (name == "far" && options.lossy) {
    options.lossy->far = number({0, 1});
  } else if (name == "error" && options.lossy) {
    options.lossy->gradient_error = number({1e-9, 1e9});
  } else {
    throw UsageError(
        fmt::format("method '{}': '{}' is no parameter of it; choose of q=, alpha=, gamma=, "
                    "fill=yes, fill=no, search=yes, search=no{}",
                    method, given, options.lossy ? ", far=, error=" : ""));
  }
}

}  // namespace

PgacOptions pgac_options(const std::string& method, const ExperimentSettings& settings,
                         std::uint64_t seed) {
  std::vector<std::string> parts = parts_between_commas(method);
  PgacOptions options = named_pgac(parts.front(), settings);
  std::set<std::string> given;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    set_parameter(options, method, parts[i]);
    const std::string name = parts[i].substr(0, parts[i].find('='));
    if (!given.insert(name).second) {
      throw UsageError(fmt::format("method '{}' is given {} twice; once is enough", method, name));
    }
  }
  // What fills the budget otherwise has nothing to fill after a search.
  if (options.searches && !given.contains("fill")) options.fills_budget = false;
  options.steps = settings.step_count();
  options.seed = seed;
  if (options.lossy) options.lossy->seed = seed;
  // Refused here, not in the middle of the experiment.
  PgacOptions whole = options;
  whole.budget = MB(1);
  try {
    const Pgac tried(whole);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("method '{}': {}", method, error.what()));
  }
  return options;
}

}  // namespace reprise::app
