// Figures as JSON lines and as a table; see figure.h.
#include "benchmarks/support/figure.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/statistics.h"

namespace reprise::bench {
namespace {

constexpr std::size_t kColumns = 9;
using Row = std::array<std::string, kColumns>;

// Bytes of the continuation of a UTF-8 letter take no room on the screen.
std::size_t letters(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

std::string number(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 0.1 ? 4 : size < 10 ? 3 : size < 1000 ? 1 : 0);
}

Row row_of(const Figure& figure) {
  const std::optional<bool> ok = figure.ok();
  const std::string verdict = ok ? (*ok ? "yes" : "NO") : "";
  return {figure.bench,
          figure.name,
          number(figure.ours),
          figure.peer ? number(*figure.peer) : "-",
          figure.unit,
          figure.ratio() ? number(*figure.ratio()) : "-",
          std::isfinite(figure.spread) ? fmt::format("{:.0f}%", 100 * figure.spread) : "-",
          to_string(figure.bar),
          verdict};
}

nlohmann::ordered_json json_or_null(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  return *value;
}

}  // namespace

std::optional<double> Figure::ratio() const {
  if (!peer || *peer == 0) return std::nullopt;
  return ours / *peer;
}

std::optional<bool> Figure::ok() const {
  if (to_string(bar).empty()) return std::nullopt;
  if ((bar.ratio_at_most || bar.above_peer_at_most) && !peer) return std::nullopt;
  return (!bar.at_most || ours <= *bar.at_most) && (!bar.at_least || ours >= *bar.at_least) &&
         (!bar.ratio_at_most || ours <= *bar.ratio_at_most * *peer) &&
         (!bar.above_peer_at_most || ours <= *peer + *bar.above_peer_at_most);
}

std::string to_string(const Bar& bar) {
  std::string text;
  const auto add = [&](const char* words, std::optional<double> bound) {
    if (bound) text += fmt::format("{}{} {:.3g}", text.empty() ? "" : ", ", words, *bound);
  };
  add(">=", bar.at_least);
  add("<=", bar.at_most);
  add("ratio <=", bar.ratio_at_most);
  add("<= peer +", bar.above_peer_at_most);
  return text;
}

std::string to_json(const Figure& figure) {
  nlohmann::ordered_json json = {{"bench", figure.bench},
                                 {"case", figure.name},
                                 {"ours", json_or_null(figure.ours)},
                                 {"peer", json_or_null(figure.peer)},
                                 {"unit", figure.unit},
                                 {"ratio", json_or_null(figure.ratio())},
                                 {"runs", figure.runs},
                                 {"spread", json_or_null(figure.spread)}};
  if (const std::string bar = to_string(figure.bar); !bar.empty()) {
    json["bar"] = bar;
    const std::optional<bool> ok = figure.ok();
    json["ok"] = ok ? nlohmann::ordered_json(*ok) : nlohmann::ordered_json(nullptr);
  }
  return json.dump();
}

std::string to_table(std::span<const Figure> figures) {
  std::vector<Row> rows = {
      {"bench", "case", "ours", "peer", "unit", "ratio", "spread", "bar", "ok"}};
  for (const Figure& figure : figures) rows.push_back(row_of(figure));
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], letters(row[i]));
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < kColumns; ++i) {
      const std::string room(widths[i] - letters(row[i]), ' ');
      const bool right = i == 2 || i == 3 || i == 5 || i == 6;
      line += (right ? room + row[i] : row[i] + room) + "  ";
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

Figure make_figure(std::string bench, std::string name, std::string unit,
                   std::span<const double> ours, std::span<const double> peer, const Bar& bar) {
  return {.bench = std::move(bench),
          .name = std::move(name),
          .ours = median(ours),
          .peer = peer.empty() ? std::nullopt : std::optional(median(peer)),
          .unit = std::move(unit),
          .runs = static_cast<int>(ours.size()),
          .spread = relative_spread(ours),
          .bar = bar};
}

}  // namespace reprise::bench
