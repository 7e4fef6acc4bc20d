#include "apps/cli/experiment/gzip.h"

#include <fmt/format.h>
#include <reprise/error.h>
#include <zlib.h>

#include <algorithm>
#include <limits>

namespace reprise::app {

namespace {

constexpr std::size_t kInflatedChunk = std::size_t{1} << 16;
// zlib's window of 2^15 bytes, and 16 for gzip's header and checksum.
constexpr int kGzipWindow = 15 + 16;

class Inflation {
 public:
  explicit Inflation(const std::string& origin) : origin_(origin) {
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) {
      throw Error("zlib cannot begin to decompress; free some memory");
    }
  }
  ~Inflation() { inflateEnd(&stream_); }
  Inflation(const Inflation&) = delete;
  Inflation& operator=(const Inflation&) = delete;

  std::string all(std::string_view bytes) {
    std::string result;
    // zlib's sizes are of 32 bits.
    constexpr std::size_t kMost = std::numeric_limits<uInt>::max();
    while (!bytes.empty()) {
      const std::size_t given = std::min(bytes.size(), kMost);
      // zlib does not write to its input, whose type has no const in its C interface.
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream_.avail_in = static_cast<uInt>(given);
      const bool ended = inflate_some(result);
      bytes.remove_prefix(given - stream_.avail_in);
      if (ended && !bytes.empty() && inflateReset(&stream_) != Z_OK) refuse("is damaged");
      if (!ended && bytes.empty()) refuse("ends too early");
    }
    return result;
  }

 private:
  // Whether a member has come to its end.
  bool inflate_some(std::string& result) {
    while (true) {
      const std::size_t before = result.size();
      result.resize(before + kInflatedChunk);
      stream_.next_out = reinterpret_cast<Bytef*>(result.data() + before);
      stream_.avail_out = static_cast<uInt>(kInflatedChunk);
      const int status = inflate(&stream_, Z_NO_FLUSH);
      result.resize(before + kInflatedChunk - stream_.avail_out);
      if (status == Z_STREAM_END) return true;
      if (status == Z_BUF_ERROR) return false;
      if (status != Z_OK) refuse("is damaged, or no gzip file");
    }
  }

  [[noreturn]] void refuse(const char* how) const {
    throw UsageError(fmt::format("{} {}; fetch or compress it again", origin_, how));
  }

  const std::string& origin_;
  z_stream stream_ = {};
};

}  // namespace

std::string gunzip(std::string_view bytes, const std::string& origin) {
  if (bytes.empty()) throw UsageError(fmt::format("{} is empty; give another file", origin));
  return Inflation(origin).all(bytes);
}

}  // namespace reprise::app
