// Printing and reading byte counts. The unit table is one list, so that everything printed can be
// read back and the error for a bad text can name exactly what is accepted.
#include <reprise/bytes.h>
#include <reprise/error.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

namespace reprise {

namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 9> kUnits{{{"B", 1},
                                      {"KB", 1e3},
                                      {"MB", 1e6},
                                      {"GB", 1e9},
                                      {"TB", 1e12},
                                      {"KiB", 1024.0},
                                      {"MiB", 1024.0 * 1024},
                                      {"GiB", 1024.0 * 1024 * 1024},
                                      {"TiB", 1024.0 * 1024 * 1024 * 1024}}};

[[noreturn]] void fail(std::string_view text, const std::string& reason) {
  std::string accepted;
  for (const Unit& unit : kUnits) {
    accepted += (accepted.empty() ? "" : ", ") + std::string(unit.name);
  }
  throw UsageError("\"" + std::string(text) + "\" is not a number of bytes: " + reason +
                   ". Write a number and one of the units " + accepted +
                   ", for example 400MB or \"1.5 GiB\"; without a unit it counts bytes.");
}

std::string_view trim(std::string_view text) {
  auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool same_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(a[i])) !=
        std::tolower(static_cast<unsigned char>(b[i]))) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string to_string(Bytes bytes) {
  double size = std::abs(static_cast<double>(bytes.count));
  if (size < 1000) return std::to_string(bytes.count) + " B";
  // A size that would round up to "1000.0" belongs to the next unit.
  std::size_t unit = 1;
  while (unit < 4 && size / kUnits[unit].bytes >= 999.95) ++unit;
  char text[32];
  std::snprintf(text, sizeof text, "%s%.1f %s", bytes.count < 0 ? "-" : "",
                size / kUnits[unit].bytes, kUnits[unit].name.data());
  return text;
}

Bytes parse_bytes(std::string_view text) {
  std::string_view rest = trim(text);
  bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  // from_chars would also take "inf", "nan" and a second sign.
  if (rest.empty() || !(std::isdigit(static_cast<unsigned char>(rest[0])) || rest[0] == '.')) {
    fail(text, "it has no number in front");
  }
  double number = 0;
  auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc()) fail(text, "its number cannot be read");
  std::string_view name = trim(rest.substr(static_cast<std::size_t>(end - rest.data())));
  const Unit* unit = name.empty() ? &kUnits[0] : nullptr;
  for (const Unit& candidate : kUnits) {
    if (same_ignoring_case(name, candidate.name)) unit = &candidate;
  }
  if (unit == nullptr) fail(text, "\"" + std::string(name) + "\" is not a unit");
  double bytes = std::round(number * unit->bytes);
  if (bytes >= static_cast<double>(std::numeric_limits<std::int64_t>::max())) {
    fail(text, "it is more than 9.2e18 bytes");
  }
  return Bytes(static_cast<std::int64_t>(negative ? -bytes : bytes));
}

}  // namespace reprise
