// Tables of pictures for the tests of vit, made on the spot.
#pragma once

#include <string>

namespace reprise::app {

// A picture of 4 by 4 equal pixels.
inline std::string line_of_picture(int pixel, int kind) {
  std::string line;
  for (int i = 0; i < 16; ++i) line += std::to_string(pixel) + ",";
  return line + std::to_string(kind) + "\n";
}

// Pictures of classes 0 to 3, which differ in brightness.
inline std::string table_of_pictures(int count) {
  std::string table;
  for (int i = 0; i < count; ++i) table += line_of_picture(4 * (i % 4) + i % 3, i % 4);
  return table;
}

}  // namespace reprise::app
