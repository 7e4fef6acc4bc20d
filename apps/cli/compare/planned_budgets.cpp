// Budgets without a step that runs.
#include "apps/cli/compare/planned_budgets.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace reprise::app {
namespace {

// A share of the plain peak: "0.5", "50%". Empty for anything else.
std::optional<double> read_share(std::string_view text) {
  const bool is_percent = text.ends_with('%');
  if (is_percent) text.remove_suffix(1);
  double share = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  if (is_percent) share /= 100;
  // Without a sign of percent, more than the whole is a number of bytes.
  if (!(share > 0) || share > (is_percent ? 1000 : 1)) return std::nullopt;
  return share;
}

}  // namespace

std::vector<std::string> split_list(const char* option, const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    if (parts.back().find_first_not_of(' ') == std::string::npos) {
      throw UsageError(fmt::format(
          "{} is '{}': an entry is empty; write them with one comma between", option, text));
    }
    begin = end + 1;
  }
  return parts;
}

Bytes read_planned_budget(std::string_view text, Bytes plain_peak) {
  if (text.find('+') < text.find_first_of("0123456789.")) {
    throw UsageError(fmt::format(
        "--budget is '{}': bytes above what is live before a step need a step that runs, as in "
        "`reprise frontier`; give a share of the plain peak (0.5 or 50%) or all bytes (400MB, "
        "8GiB)",
        text));
  }
  if (const auto share = read_share(text)) {
    return Bytes(static_cast<std::int64_t>(*share * static_cast<double>(plain_peak.count)));
  }
  // A part of a byte is a share that has been mistaken.
  const bool is_number = text.find_first_not_of("0123456789. ") == std::string_view::npos;
  const bool is_broken = is_number && text.find('.') != std::string_view::npos;
  try {
    const Bytes bytes = parse_bytes(text);
    if (bytes > Bytes(0) && !is_broken) return bytes;
  } catch (const UsageError&) {
    // Says what bytes are, but not that a share would do as well.
  }
  throw UsageError(fmt::format(
      "--budget is '{}': give a share of the plain peak (0.5 or 50%) or bytes (400MB, 8GiB)",
      text));
}

double share(Bytes part, Bytes whole) {
  return whole > Bytes(0) ? static_cast<double>(part.count) / static_cast<double>(whole.count) : 1;
}

}  // namespace reprise::app
