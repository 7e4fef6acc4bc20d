// Decoding is stb_image's, compiled in here and nowhere else.
#include "apps/cli/experiment/image_file.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "apps/cli/io/atomic_file.h"

// Files are read by our own functions, whose errors say more.
#define STBI_NO_STDIO
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#include <stb/stb_image.h>

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 8> kImageExtensions = {".bmp", ".gif", ".jpeg", ".jpg",
                                                              ".pgm", ".png", ".ppm",  ".tga"};
constexpr const char* kImageRemedy = "give pictures such as PNG or JPEG";
constexpr double kHalfRange = 127.5;  // of a byte

struct FreeImage {
  void operator()(stbi_uc* bytes) const { stbi_image_free(bytes); }
};

[[noreturn]] void refuse_image(const fs::path& file, std::string_view reason) {
  throw UsageError(fmt::format("cannot decode {}: {}; {}", file.string(), reason, kImageRemedy));
}

// [1, channels, height, width], in [-1, 1].
at::Tensor decode(const fs::path& file, std::int64_t channels) {
  const std::string bytes = read_file(file, kImageRemedy);
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    refuse_image(file, "it is larger than 2 GB");
  }
  int width = 0, height = 0, channels_in_file = 0;
  const std::unique_ptr<stbi_uc, FreeImage> pixels(stbi_load_from_memory(
      reinterpret_cast<const stbi_uc*>(bytes.data()), static_cast<int>(bytes.size()), &width,
      &height, &channels_in_file, static_cast<int>(channels)));
  if (!pixels) refuse_image(file, stbi_failure_reason());
  const auto image = at::from_blob(pixels.get(), {1, height, width, channels}, at::kByte);
  return image.permute({0, 3, 1, 2}).to(at::kFloat).contiguous().div_(kHalfRange).sub_(1.0);
}

std::int64_t scaled(std::int64_t side, std::int64_t shorter, std::int64_t size) {
  const double exact = static_cast<double>(side) * static_cast<double>(size);
  return std::max<std::int64_t>(size, std::llround(exact / static_cast<double>(shorter)));
}

}  // namespace

bool is_image_file(const fs::path& file) {
  std::string extension = file.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::binary_search(kImageExtensions, extension);
}

at::Tensor read_image(const fs::path& file, std::int64_t size, std::int64_t channels) {
  at::Tensor image = decode(file, channels);
  const std::int64_t height = image.size(2), width = image.size(3);
  const std::int64_t shorter = std::min(height, width);
  if (shorter != size) {
    image = at::_upsample_bilinear2d_aa(
        image, {scaled(height, shorter, size), scaled(width, shorter, size)},
        /*align_corners=*/false);
  }
  const std::int64_t top = (image.size(2) - size) / 2, left = (image.size(3) - size) / 2;
  return image.narrow(2, top, size).narrow(3, left, size).squeeze(0).contiguous();
}

}  // namespace reprise::app
