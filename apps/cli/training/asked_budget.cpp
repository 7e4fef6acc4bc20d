#include "apps/cli/training/asked_budget.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

namespace reprise::app {

namespace {

// Sums of two such numbers stay within 64 bits.
constexpr Bytes kMost(std::int64_t{1} << 60);
constexpr double kMostPercent = 1000;

// "80%", or "0.8": without the sign, more than one whole is a number of bytes.
std::optional<double> read_share(std::string_view text) {
  const bool is_percent = text.ends_with('%');
  if (is_percent) text.remove_suffix(1);
  double share = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, share);
  if (error != std::errc() || stop != end) return std::nullopt;
  if (!(share > 0 && share <= (is_percent ? kMostPercent : 1))) return std::nullopt;
  return is_percent ? share / 100 : share;
}

// A part of a byte is a share that was meant otherwise.
bool is_broken_number(std::string_view text) {
  return text.find('.') != std::string_view::npos &&
         text.find_first_not_of("0123456789. ") == std::string_view::npos;
}

std::optional<Bytes> read_bytes(std::string_view text) {
  if (is_broken_number(text)) return std::nullopt;
  try {
    const Bytes bytes = parse_bytes(text);
    if (bytes > Bytes(0) && bytes <= kMost) return bytes;
  } catch (const UsageError&) {
    // Its text knows the forms of bytes alone.
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
  if (const auto share = read_share(text)) {
    budget.form_ = Form::kShare;
    budget.share_ = *share;
    return budget;
  }
  if (const auto bytes = read_bytes(text)) {
    budget.form_ = text.starts_with('+') ? Form::kAbove : Form::kAll;
    budget.bytes_ = *bytes;
    return budget;
  }
  throw UsageError(fmt::format(
      "{} is '{}': give all bytes (400MB, 8GiB; at most 2^60), a share of the plain step's peak "
      "(80% or 0.8; above 0% and at most {:g}%), bytes above those live before the step (+84MB), "
      "or "
      "'least': the least in which a step runs",
      option, text, kMostPercent));
}

AskedBudget AskedBudget::parse_planned(std::string_view option, std::string_view text) {
  if (!read_share(text) && !read_bytes(text)) {
    throw UsageError(fmt::format(
        "{} is '{}': give a share of the plain peak (0.5 or 50%; above 0% and at most {:g}%) or all "
        "bytes (400MB, 8GiB; at most 2^60)",
        option, text, kMostPercent));
  }
  AskedBudget budget = parse(option, text);
  if (budget.form_ != Form::kAbove && !budget.is_least()) return budget;
  throw UsageError(fmt::format(
      "{} is '{}': bytes above those live before a step, and the least, need a step that runs, as "
      "in `reprise "
      "frontier`; give a share of the plain peak (0.5 or 50%) or all bytes (400MB, 8GiB)",
      option, text));
}

std::optional<AskedBudget> AskedBudget::of_strategy(std::string_view strategy) {
  constexpr std::string_view kKind = "budget:";
  if (!strategy.starts_with(kKind)) return std::nullopt;
  return parse("the budget of strategy " + std::string(strategy), strategy.substr(kKind.size()));
}

Bytes AskedBudget::of_peak(Bytes plain_peak) const {
  return is_share() ? Bytes(std::llround(share_ * static_cast<double>(plain_peak.count))) : bytes_;
}

Bytes AskedBudget::limit(Bytes live, Bytes measured) const {
  Bytes limit = is_least() ? measured : of_peak(measured);
  if (form_ == Form::kAbove) limit += live;
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
    return fmt::format("{} ({} bytes): the least in which a step runs, with {} live before it",
                       bytes, measured.count, to_string(live));
  }
  return fmt::format("{}, with {} live before the step", bytes, to_string(live));
}

std::vector<AskedBudget> planned_budgets(const char* list) {
  std::vector<AskedBudget> budgets;
  std::istringstream texts(list);
  for (std::string text; std::getline(texts, text, ',');) {
    budgets.push_back(AskedBudget::parse_planned("--budget", text));
  }
  return budgets;
}

}  // namespace reprise::app
