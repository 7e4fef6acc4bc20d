// Pictures from files, as a model is given them: PNG, JPEG, BMP, PGM and PPM, and what else
// stb_image reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace reprise::app {

// Whether a file's name ends as that of a picture.
bool is_image_file(const std::filesystem::path& file);

// A float tensor [channels, size, size] with values in [-1, 1]: channels is 1 (grey) or 3 (red,
// green, blue), whatever the file has; transparency is left out. The picture is scaled, smoothed
// where it shrinks, until its shorter side is `size`, and its middle is cut out. Throws UsageError,
// naming the file and the reason, for what cannot be read or decoded.
at::Tensor read_image(const std::filesystem::path& file, std::int64_t size, std::int64_t channels);

}  // namespace reprise::app
