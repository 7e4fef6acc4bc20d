// Reading pictures again: enough of XML for SVG that this library writes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reprise {

inline std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// What is between `from` and the next `to`, at each `from`.
inline std::vector<std::string> all_between(std::string_view text, std::string_view from,
                                            std::string_view to) {
  std::vector<std::string> found;
  for (auto at = text.find(from); at != text.npos; at = text.find(from, at)) {
    at += from.size();
    found.emplace_back(text.substr(at, text.find(to, at) - at));
  }
  return found;
}

// Why the text is not well-formed XML; empty if it is. Tags must be closed in order, ampersands
// begin one of the entities, and characters be printable.
inline std::string malformation_of(std::string_view text) {
  std::vector<std::string> open;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 && byte != '\n') return "control character " + std::to_string(byte);
    if (text[i] == '&') {
      const auto entity = text.substr(i, text.find(';', i) - i);
      if (entity != "&lt" && entity != "&gt" && entity != "&amp" && entity != "&quot") {
        return "entity " + std::string(entity);
      }
    }
    if (text[i] != '<') continue;
    const auto end = text.find('>', i);
    if (end == text.npos) return "open tag at the end";
    const auto tag = text.substr(i + 1, end - i - 1);
    i = end;
    if (tag.find('<') != tag.npos || count_of(tag, "\"") % 2) return "tag " + std::string(tag);
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "closing " + std::string(tag);
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.emplace_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

}  // namespace reprise
