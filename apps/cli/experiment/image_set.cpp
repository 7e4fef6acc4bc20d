#include "apps/cli/experiment/image_set.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "apps/cli/experiment/delimited.h"
#include "apps/cli/experiment/fingerprint.h"
#include "apps/cli/experiment/image_file.h"
#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kDigitSide = 8;
constexpr std::int64_t kDigitPixels = kDigitSide * kDigitSide;
constexpr int kDarkest = 16;
constexpr int kDigits = 10;

// Numbers of one record, or an empty list if a field is none.
std::vector<double> numbers_in(const Record& record) {
  std::vector<double> numbers;
  for (const std::string& field : record.fields) {
    double number = 0;
    const char* end = field.data() + field.size();
    const auto [stop, error] = std::from_chars(field.data(), end, number);
    if (error != std::errc() || stop != end) return {};
    numbers.push_back(number);
  }
  return numbers;
}

bool is_digit_record(const std::vector<double>& numbers) {
  if (numbers.size() != kDigitPixels + 1) return false;
  const double digit = numbers.back();
  return std::ranges::all_of(numbers, [](double n) { return n >= 0 && n <= kDarkest; }) &&
         digit < kDigits && digit == static_cast<double>(static_cast<int>(digit));
}

// Sorted names of what a folder holds, hidden entries left out.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with('.')) names.push_back(std::move(name));
  }
  if (error) {
    throw UsageError(fmt::format("cannot read {}: {}; give a folder of pictures with --images",
                                 folder.string(), error.message()));
  }
  std::ranges::sort(names);
  return names;
}

// Links to folders are not followed, for they may lead back.
void collect_images(const fs::path& folder, std::vector<std::string>& files) {
  for (const std::string& name : names_in(folder)) {
    const fs::path path = folder / name;
    std::error_code error;
    if (fs::symlink_status(path, error).type() == fs::file_type::directory) {
      collect_images(path, files);
    } else if (is_image_file(path)) {
      files.push_back(path.string());
    }
  }
}

std::vector<std::string> class_names(const std::string& folder) {
  std::vector<std::string> classes;
  for (const std::string& name : names_in(folder)) {
    std::error_code error;
    if (fs::is_directory(fs::path(folder) / name, error)) classes.push_back(name);
  }
  return classes;
}

}  // namespace

ImageSet ImageSet::of_folder(const std::string& folder, ImageShape shape) {
  const std::vector<std::string> classes = class_names(folder);
  if (classes.size() < 2) {
    throw UsageError(
        fmt::format("{} has {} sub-folder{}; a folder of pictures has one for each class, at least "
                    "2",
                    folder, classes.size(), classes.size() == 1 ? "" : "s"));
  }
  return of_folder(folder, shape, classes);
}

ImageSet ImageSet::of_folder(const std::string& folder, ImageShape shape,
                             const std::vector<std::string>& classes) {
  ImageSet set(shape, classes);
  for (const std::string& name : class_names(folder)) {
    const auto found = std::ranges::lower_bound(classes, name);
    if (found == classes.end() || *found != name) {
      throw UsageError(fmt::format("{}/{} is none of the training data's classes: {}", folder, name,
                                   fmt::join(classes, ", ")));
    }
    const std::size_t before = set.files_.size();
    collect_images(fs::path(folder) / name, set.files_);
    if (set.files_.size() == before) {
      throw UsageError(
          fmt::format("{}/{} has no pictures (files such as .png or .jpg); remove it or fill it",
                      folder, name));
    }
    set.classes_of_examples_.resize(set.files_.size(), found - classes.begin());
  }
  if (set.files_.empty()) throw UsageError(fmt::format("{} has no pictures; fill it", folder));
  return set;
}

ImageSet ImageSet::of_digits(const std::string& file, ImageShape shape) {
  const std::vector<Record> records = read_delimited(file);
  if (records.empty()) throw UsageError(fmt::format("{} has no records; give another", file));
  std::vector<std::string> classes;
  for (int digit = 0; digit < kDigits; ++digit) classes.push_back(std::to_string(digit));
  ImageSet set(shape, std::move(classes));
  set.pixels_ =
      at::empty({static_cast<std::int64_t>(records.size()), 1, kDigitSide, kDigitSide}, at::kFloat);
  auto* next = set.pixels_.mutable_data_ptr<float>();
  for (const Record& record : records) {
    const std::vector<double> numbers = numbers_in(record);
    if (!is_digit_record(numbers)) {
      throw UsageError(fmt::format(
          "{}:{}: no {} pixels from 0 to {} and a digit; give a table as scikit-learn's "
          "digits.csv.gz, or a folder of pictures",
          file, record.line, kDigitPixels, kDarkest));
    }
    next = std::transform(numbers.begin(), numbers.end() - 1, next, [](double pixel) {
      return static_cast<float>(pixel * 2.0 / kDarkest - 1.0);
    });
    set.classes_of_examples_.push_back(static_cast<std::int64_t>(numbers.back()));
  }
  return set;
}

ImageBatch ImageSet::batch(const std::vector<std::size_t>& examples) const {
  std::vector<at::Tensor> images;
  std::vector<std::int64_t> classes;
  for (const std::size_t example : examples) {
    classes.push_back(classes_of_examples_[example]);
    images.push_back(files_.empty() ? pixels_[static_cast<std::int64_t>(example)]
                                    : read_image(files_[example], shape_.size, shape_.channels));
  }
  at::Tensor stacked = at::stack(images);
  if (files_.empty()) {
    if (shape_.size != kDigitSide) {
      stacked = at::upsample_bilinear2d(stacked, {shape_.size, shape_.size},
                                        /*align_corners=*/false);
    }
    if (shape_.channels != 1) {
      stacked = stacked.expand({-1, shape_.channels, -1, -1}).contiguous();
    }
  }
  return {.images = stacked, .classes = at::tensor(classes, at::kLong)};
}

void ImageSet::add_to(Fingerprint& fingerprint) const {
  for (const std::string& name : classes_) fingerprint.add(name);
  for (std::size_t i = 0; i < size(); ++i) {
    fingerprint.add(static_cast<std::uint64_t>(classes_of_examples_[i]));
    if (!files_.empty()) {
      fingerprint.add(read_file(files_[i], "put the picture back, or remove it"));
    }
  }
  if (!files_.empty()) return;
  const auto bytes = static_cast<std::size_t>(pixels_.numel()) * sizeof(float);
  fingerprint.add({reinterpret_cast<const char*>(pixels_.const_data_ptr<float>()), bytes});
}

}  // namespace reprise::app
