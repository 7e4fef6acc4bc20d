// Rounding, and columns counted in characters rather than bytes.
#include "apps/cli/io/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reprise::app {

namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Bytes that begin a character: what a terminal counts, for the text that is printed here.
std::size_t printed_width(const std::string& text) {
  return text.size() - static_cast<std::size_t>(std::ranges::count_if(text, continues_character));
}

// Bytes of the UTF-8 character that the text begins with; 0 if it begins with none.
std::size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length > text.size()) return 0;
  const auto rest = text.substr(1, length > 0 ? length - 1 : 0);
  return std::ranges::all_of(rest, continues_character) ? length : 0;
}

std::string padding(std::size_t width, const std::string& text) {
  return std::string(width - std::min(width, printed_width(text)), ' ');
}

}  // namespace

std::string format_count(double count) {
  if (count >= 1e9) return fmt::format("{:.2f} G", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.2f} M", count / 1e6);
  if (count >= 1e4) return fmt::format("{:.1f} k", count / 1e3);
  return fmt::format("{:.0f}", count);
}

std::string format_duration(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string format_milliseconds(double milliseconds) {
  const int digits = milliseconds < 9.995 ? 2 : milliseconds < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}", milliseconds, digits);
}

std::string escape(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (text[0] == '\n') {
      escaped += "\\n";
    } else if (text[0] == '\t') {
      escaped += "\\t";
    } else if (length == 0 || byte < 0x20 || byte == 0x7f) {
      escaped += fmt::format("\\x{:02x}", byte);
    } else {
      escaped += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return escaped;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double share(Bytes part, Bytes whole) {
  return whole > Bytes(0) ? static_cast<double>(part.count) / static_cast<double>(whole.count) : 1;
}

std::string TextTable::text() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], printed_width(row[i]));
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line = row[0] + padding(widths[0], row[0]);
    for (std::size_t i = 1; i < row.size(); ++i)
      line += "   " + padding(widths[i], row[i]) + row[i];
    text += line + "\n";
  }
  return text;
}

std::string Facts::text() const {
  std::size_t width = 0;
  for (const auto& [name, value] : entries_) width = std::max(width, printed_width(name));
  std::string text;
  for (const auto& [name, value] : entries_) {
    text += name + padding(width, name) + "   " + value + "\n";
  }
  return text;
}

}  // namespace reprise::app
