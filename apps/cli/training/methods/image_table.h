// Small grey pictures from a table of text, such as scikit-learn's handwritten digits: a line for
// each picture, with its pixels row by row and its class last, and commas between.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace reprise::app {

struct ImageTable {
  at::Tensor images;       // floats [count, 1, side, side], from 0 to 1
  at::Tensor classes;      // int64 [count]
  std::int64_t side = 0;   // height and width, in pixels
  std::int64_t kinds = 0;  // of classes: the largest is kinds - 1
  std::uint64_t fingerprint = 0;
};

// Throws UsageError "FILE:LINE: what; remedy" for a line that is no picture of the first one's size
// with a class. Throws UsageError, naming the file, for one that is missing, cannot be read, or
// holds fewer than ten pictures or two classes.
ImageTable read_image_table(const std::string& file);

}  // namespace reprise::app
