// Pictures with a class each: a folder of files, or the handwritten digits of a table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace reprise::app {

class Fingerprint;

struct ImageShape {
  std::int64_t size = 8;      // height and width, in pixels
  std::int64_t channels = 1;  // 1 or 3
};

struct ImageBatch {
  at::Tensor images;   // floats [batch, channels, size, size] in [-1, 1]
  at::Tensor classes;  // int64 [batch]
};

class ImageSet {
 public:
  // A folder with a sub-folder for each class, as ImageNet is unpacked: pictures anywhere below it
  // are of the class that is the sub-folder's name. Files are decoded when a batch needs them.
  // Classes are sorted; hidden files and files without a picture's name are passed over. Throws
  // UsageError for what is no folder, for fewer than two classes, and for a sub-folder without a
  // picture.
  static ImageSet of_folder(const std::string& folder, ImageShape shape);
  // The same for held-out pictures; a class that is not among `classes` is an error.
  static ImageSet of_folder(const std::string& folder, ImageShape shape,
                            const std::vector<std::string>& classes);
  // A table (delimited.h) of digits without names of columns, as scikit-learn's digits.csv.gz: 64
  // pixels from 0 to 16, row by row, and the digit. Throws UsageError "FILE:LINE: ..." for a record
  // that is not of that form.
  static ImageSet of_digits(const std::string& file, ImageShape shape);

  std::size_t size() const { return classes_of_examples_.size(); }
  const std::vector<std::string>& classes() const { return classes_; }
  // Of these examples. Throws UsageError, naming the file, for one that cannot be decoded.
  ImageBatch batch(const std::vector<std::size_t>& examples) const;
  // Classes and pictures, whose files are read for it. Throws UsageError for one that cannot be.
  void add_to(Fingerprint& fingerprint) const;

 private:
  ImageSet(ImageShape shape, std::vector<std::string> classes)
      : shape_(shape), classes_(std::move(classes)) {}

  ImageShape shape_;
  std::vector<std::string> classes_;
  std::vector<std::int64_t> classes_of_examples_;
  std::vector<std::string> files_;  // one an example, or none
  at::Tensor pixels_;               // [examples, 1, 8, 8] in [-1, 1], where there are no files
};

}  // namespace reprise::app
