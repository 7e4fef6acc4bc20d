#include "apps/cli/training/methods/image_table.h"

#define XXH_INLINE_ALL
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace {

constexpr const char* kTableRemedy = "give a table of pictures with --data";
// One of ten is held out.
constexpr std::size_t kLeastPictures = 10;
constexpr double kMostKinds = 10'000;

struct TableReader {
  const std::string& file;
  std::size_t line = 0;
  std::size_t pixels_of_one = 0;
  std::vector<float> pixels = {};
  std::vector<std::int64_t> classes = {};

  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError(fmt::format(
        "{}:{}: {}; a line has the pixels of a square picture and its class, with commas between",
        file, line, what));
  }

  double number(std::string_view text) const {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || !std::isfinite(value)) {
      refuse(fmt::format("'{}' is no number", text.substr(0, 40)));
    }
    return value;
  }

  void read(std::string_view text) {
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) return;
    const std::size_t before = pixels.size();
    std::size_t comma = text.find(',');
    for (; comma != std::string_view::npos; comma = text.find(',')) {
      pixels.push_back(static_cast<float>(number(text.substr(0, comma))));
      text.remove_prefix(comma + 1);
    }
    const std::size_t count = pixels.size() - before;
    if (pixels_of_one == 0) {
      const auto side = static_cast<std::size_t>(std::lround(std::sqrt(count)));
      if (count == 0 || side * side != count) {
        refuse(fmt::format("{} pixels are no square", count));
      }
      pixels_of_one = count;
    }
    if (count != pixels_of_one) {
      refuse(fmt::format("{} pixels, and the first picture has {}", count, pixels_of_one));
    }
    const double kind = number(text);
    if (kind != std::floor(kind) || kind < 0 || kind > kMostKinds) {
      refuse(fmt::format("the class is {}, and must be a whole number from 0 to {}", kind,
                         kMostKinds));
    }
    classes.push_back(static_cast<std::int64_t>(kind));
  }
};

}  // namespace

ImageTable read_image_table(const std::string& file) {
  const std::string text = read_file(file, kTableRemedy);
  TableReader reader{.file = file};
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    ++reader.line;
    reader.read(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  if (reader.classes.size() < kLeastPictures) {
    throw UsageError(fmt::format("{} holds {} pictures, and at least {} are needed; {}", file,
                                 reader.classes.size(), kLeastPictures, kTableRemedy));
  }
  const auto [least, most] = std::ranges::minmax(reader.classes);
  if (least == most) {
    throw UsageError(fmt::format("all pictures of {} are of class {}, and two are needed; {}", file,
                                 least, kTableRemedy));
  }
  ImageTable table;
  table.side = std::lround(std::sqrt(reader.pixels_of_one));
  table.kinds = most + 1;
  table.classes = at::tensor(reader.classes);
  table.images = at::tensor(reader.pixels).view({-1, 1, table.side, table.side});
  const double brightest = table.images.max().item<double>();
  if (brightest > 0) table.images.div_(brightest);
  table.fingerprint = XXH3_64bits(text.data(), text.size());
  return table;
}

}  // namespace reprise::app
