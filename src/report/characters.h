// Texts of reports by their characters: how wide they are, and what XML can hold of them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace reprise {

// UTF-8's characters, not its bytes.
std::size_t characters(std::string_view text);

// For text and attributes of XML: markup is escaped, control characters are spaces, and what is no
// UTF-8, or no character of XML, is U+FFFD.
std::string xml_escaped(std::string_view text);

// At most `count` characters; what is longer ends with an ellipsis.
std::string shortened(std::string_view text, std::size_t count);

// Decimal with so many digits after the point; never "-0".
std::string fixed(double value, int digits);
// With so many significant digits, the shortest form: "0.001", "1.2e+08".
std::string significant(double value, int digits);

}  // namespace reprise
