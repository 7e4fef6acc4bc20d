// The names of methods, and what stands behind Pgac's.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "apps/cli/io/option_group.h"
#include "apps/cli/training/methods/method.h"

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

std::string name_of(const std::string& method) { return method.substr(0, method.find(',')); }

bool is_pgac(const std::string& method) {
  const std::string name = name_of(method);
  return name == "random" || name == "pgac" || name.starts_with("pgac:");
}

PgacOptions named_pgac(const std::string& name) {
  PgacOptions options;
  options.fill_budget = name != "pgac" && name != "pgac:lossy";
  if (name == "pgac:cost") options.ranking = PgacRanking::kCost;
  if (name == "pgac:product") options.ranking = PgacRanking::kInfluenceTimesCost;
  if (name == "random") options.ranking = PgacRanking::kRandom;
  if (name == "pgac:lossy") options.lossy = LossyOptions{.min_bytes = kLeastParked};
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
    options.fill_budget = value == "yes";
  } else if (name == "search" && (value == "yes" || value == "no")) {
    options.exact_search = value == "yes";
  } else if (name == "far" && options.lossy) {
    options.lossy->int4_threshold = number({0, 1});
  } else if (name == "error" && options.lossy) {
    options.lossy->gradient_error = number({1e-9, 1e9});
  } else {
    throw UsageError(
        fmt::format("method '{}': '{}' is no parameter of it; choose from q=, alpha=, gamma=, "
                    "fill=yes, fill=no, search=yes, search=no{}",
                    method, given, options.lossy ? ", far=, error=" : ""));
  }
}

}  // namespace

const std::vector<std::string>& training_methods() {
  static const std::vector<std::string> methods = {
      "none",   "every-block", "uniform",        "random",    "dtr",          "dtr-influence",
      "budget", "pgac",        "pgac:influence", "pgac:cost", "pgac:product", "pgac:lossy"};
  return methods;
}

bool needs_budget(const std::string& method) { return method != "none" && method != "every-block"; }

bool is_exact(const std::string& method) { return name_of(method) != "pgac:lossy"; }

void check_method(const MethodOptions& options) {
  const std::string name = name_of(options.name);
  const auto& known = training_methods();
  if (std::ranges::count(known, name) == 0) {
    throw UsageError(
        fmt::format("--method is '{}': choose one of {}", name, fmt::join(known, ", ")));
  }
  if (is_pgac(name)) {
    pgac_options(options);
  } else if (name != options.name) {
    throw UsageError(fmt::format("method '{}' takes no parameters, but was given '{}'", name,
                                 options.name.substr(name.size() + 1)));
  }
}

PgacOptions pgac_options(const MethodOptions& of_method) {
  const std::string& method = of_method.name;
  const std::vector<std::string> parts = parts_between_commas(method);
  PgacOptions options = named_pgac(parts.front());
  std::set<std::string> given;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    set_parameter(options, method, parts[i]);
    const std::string name = parts[i].substr(0, parts[i].find('='));
    if (!given.insert(name).second) {
      throw UsageError(fmt::format("method '{}' is given {} twice; once is enough", method, name));
    }
  }
  // A search leaves nothing to fill.
  if (options.exact_search && !given.contains("fill")) options.fill_budget = false;
  options.steps = of_method.steps;
  options.seed = of_method.seed;
  if (options.lossy) options.lossy->seed = of_method.seed;
  // Pgac refuses combinations in its constructor, before any data is read.
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
