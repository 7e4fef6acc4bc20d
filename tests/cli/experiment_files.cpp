#include "tests/cli/experiment_files.h"

#include <zlib.h>

#include <cstdlib>
#include <stdexcept>

namespace reprise::app {

namespace {

std::string deflated(const std::string& bytes, int window) {
  z_stream stream = {};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("zlib cannot begin");
  }
  std::string result(deflateBound(&stream, bytes.size()), '\0');
  std::string input = bytes;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

std::string big_endian(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  return bytes;
}

std::string chunk(const std::string& type, const std::string& data) {
  const std::string checked = type + data;
  const auto sum =
      crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + checked +
         big_endian(static_cast<std::uint32_t>(sum));
}

}  // namespace

std::string gzipped(const std::string& text) { return deflated(text, 15 + 16); }

std::string png(int width, int height, const std::string& rgb) {
  std::string rows;
  const auto row_bytes = static_cast<std::size_t>(3 * width);
  for (int row = 0; row < height; ++row) {
    rows += '\0';  // no filter
    rows += rgb.substr(static_cast<std::size_t>(row) * row_bytes, row_bytes);
  }
  const std::string header = big_endian(static_cast<std::uint32_t>(width)) +
                             big_endian(static_cast<std::uint32_t>(height)) +
                             std::string("\x08\x02\0\0\0", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", deflated(rows, 15)) +
         chunk("IEND", "");
}

std::string ppm_of_one(int grey) {
  return "P6 1 1 255\n" + std::string(3, static_cast<char>(grey));
}

std::string digit_record(int digit, int pixel) {
  std::string record;
  for (int i = 0; i < 64; ++i) record += std::to_string(pixel) + ',';
  return record + std::to_string(digit) + '\n';
}

EnvironmentVariable::EnvironmentVariable(const char* name, const std::string& value)
    : name_(name), was_set_(std::getenv(name) != nullptr) {
  if (was_set_) before_ = std::getenv(name);
  value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
}

EnvironmentVariable::~EnvironmentVariable() {
  was_set_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_);
}

}  // namespace reprise::app
