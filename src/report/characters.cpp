// std::to_chars, unlike printf, knows no locale, which could put a comma into a coordinate.
#include "report/characters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

namespace reprise {

namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// The bytes of the XML character that the text, which is not empty, begins with; 0 for none.
std::size_t length_of_first(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const std::size_t length = lead < 0xc2   ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length == 0 || text.size() < length) return 0;
  std::uint32_t code = lead & (0x7fU >> length);
  for (const char c : text.substr(1, length - 1)) {
    if (!continues(c)) return 0;
    code = code << 6U | (static_cast<unsigned char>(c) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[length] || code > 0x10ffff || is_surrogate) return 0;
  return code == 0xfffe || code == 0xffff ? 0 : length;
}

std::string written(double value, std::chars_format format, int digits) {
  // The greatest double has 309 digits before the point.
  std::array<char, 400> text;
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  return error == std::errc() ? std::string(text.data(), end) : std::string("?");
}

}  // namespace

std::size_t characters(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::ranges::count_if(text, continues));
}

std::string xml_escaped(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const std::size_t length = length_of_first(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      safe += "\xef\xbf\xbd";
    } else if (byte < 0x20 || byte == 0x7f) {
      safe += ' ';
    } else if (byte == '<') {
      safe += "&lt;";
    } else if (byte == '>') {
      safe += "&gt;";
    } else if (byte == '&') {
      safe += "&amp;";
    } else if (byte == '"') {
      safe += "&quot;";
    } else {
      safe += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return safe;
}

std::string shortened(std::string_view text, std::size_t count) {
  if (characters(text) <= count) return std::string(text);
  std::size_t end = 0;
  // Up to the byte that begins the character with which it would be too long.
  for (std::size_t seen = 0; end < text.size(); ++end) {
    if (!continues(text[end]) && ++seen >= count) break;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string fixed(double value, int digits) {
  std::string text = written(value, std::chars_format::fixed, digits);
  if (text[0] == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

std::string significant(double value, int digits) {
  return written(value, std::chars_format::general, digits);
}

}  // namespace reprise
