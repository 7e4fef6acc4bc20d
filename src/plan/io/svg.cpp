#include "plan/io/svg.h"

#include <cmath>

namespace reprise::plan {

std::string svg_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  }
  return result;
}

std::string svg_attribute(const char* name, double value) {
  const auto tenths = std::llround(value * 10);
  return std::string(" ") + name + "=\"" + std::to_string(tenths / 10) + "." +
         std::to_string(tenths % 10) + "\"";
}

}  // namespace reprise::plan
