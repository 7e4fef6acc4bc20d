// The parts of SVG that all pictures write: text that may contain anything, and numbers.
#pragma once

#include <string>
#include <string_view>

namespace reprise::plan {

// Replaces the characters that text and attributes of SVG may not contain.
std::string svg_escaped(std::string_view text);
// ` NAME="VALUE"`, with one decimal place in every locale.
std::string svg_attribute(const char* name, double value);

}  // namespace reprise::plan
