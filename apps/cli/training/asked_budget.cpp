// The forms of asked_budget.h.
#include "apps/cli/training/asked_budget.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace reprise::app {

namespace {

// Nobody has as much; sums of two stay within 64 bits.
constexpr Bytes kMost(std::int64_t{1} << 60);
constexpr double kMostPercent = 1000;

std::optional<double> read_percent(std::string_view text) {
  double percent = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc() || stop != end || !(percent > 0 && percent <= kMostPercent)) {
    return std::nullopt;
  }
  return percent / 100;
}

std::optional<Bytes> read_bytes(std::string_view text) {
  try {
    const Bytes bytes = parse_bytes(text);
    if (bytes > Bytes(0) && bytes <= kMost) return bytes;
  } catch (const UsageError&) {
    // Says what bytes are, but not what else would do.
  }
  return std::nullopt;
}

}  // namespace

AskedBudget AskedBudget::parse(std::string_view option, std::string_view text) {
  AskedBudget budget;
  budget.option_ = option;
  budget.text_ = text;
  if (text == "least") {
    budget.form_ = Form::kLeast;
    return budget;
  }
  if (text.ends_with('%')) {
    if (const auto share = read_percent(text.substr(0, text.size() - 1))) {
      budget.form_ = Form::kShare;
      budget.share_ = *share;
      return budget;
    }
  } else if (const auto bytes = read_bytes(text)) {
    budget.form_ = text.starts_with('+') ? Form::kAbove : Form::kAll;
    budget.bytes_ = *bytes;
    return budget;
  }
  throw UsageError(fmt::format(
      "{} is '{}': give all bytes (400MB, 8GiB; at most 2^60), a share of the plain step's peak "
      "(80%; above 0% and at most {:g}%), bytes above those live before the step (+84MB), or "
      "'least': the least in which a step runs",
      option, text, kMostPercent));
}

std::optional<AskedBudget> AskedBudget::of_strategy(std::string_view strategy) {
  constexpr std::string_view kKind = "budget:";
  if (!strategy.starts_with(kKind)) return std::nullopt;
  return parse("the budget of strategy " + std::string(strategy), strategy.substr(kKind.size()));
}

Bytes AskedBudget::limit(Bytes live, Bytes measured) const {
  Bytes limit = is_least() ? measured : bytes_;
  if (form_ == Form::kAbove) limit += live;
  if (form_ == Form::kShare) {
    limit = Bytes(std::llround(share_ * static_cast<double>(measured.count)));
  }
  if (limit > live) return limit;
  throw UsageError(
      fmt::format("{} is '{}', which is {}, and {} are live before the step already (weights and "
                  "what goes with them): give more, or bytes above those, such as +{:.0f}MB",
                  option_, text_, to_string(limit), to_string(live),
                  std::max(1.0, std::ceil(live.megabytes()))));
}

std::string AskedBudget::describe(Bytes live, Bytes measured) const {
  const std::string bytes = to_string(limit(live, measured));
  if (form_ == Form::kShare) {
    return fmt::format("{}: {} of the plain step's {}", bytes, text_, to_string(measured));
  }
  if (is_least()) {
    return fmt::format("{} ({} bytes): the least in which a step runs, of which {} are live before",
                       bytes, measured.count, to_string(live));
  }
  return fmt::format("{}, of which {} are live before the step", bytes, to_string(live));
}

}  // namespace reprise::app
