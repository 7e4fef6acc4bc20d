// Reads through zlib, which passes plain text as it is.
#include "plan/io/text_file.h"

#include <reprise/error.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace reprise::plan {

std::string read_text_file(const std::filesystem::path& file, const std::string& what,
                           std::size_t most) {
  const auto refuse = [&](const std::string& reason) {
    throw UsageError("cannot read " + what + " " + file.string() + ": " + reason);
  };
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  // A device may never end; a pipe is where a shell's <(...) comes from.
  if (exists(status) && !is_regular_file(status) && !is_fifo(status)) {
    refuse("it is a folder or a device; give a file");
  }
  errno = 0;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> stream(gzopen(file.c_str(), "rb"), gzclose);
  if (!stream) refuse(errno != 0 ? std::strerror(errno) : "out of memory");
  gzbuffer(stream.get(), 1 << 18);
  std::string text;
  for (;;) {
    constexpr std::size_t kBlock = std::size_t{1} << 17;
    const std::size_t before = text.size();
    text.resize(before + kBlock);
    const int count = gzread(stream.get(), text.data() + before, kBlock);
    int code = Z_OK;
    const char* reason = gzerror(stream.get(), &code);
    // A file that was cut is told as Z_BUF_ERROR after all that could be read.
    if (count < 0 || code == Z_BUF_ERROR) {
      refuse(code == Z_ERRNO ? std::strerror(errno)
             : code == Z_BUF_ERROR
                 ? "the compressed file ends early"
                 : "the compressed file is damaged (" + std::string(reason) + ")");
    }
    text.resize(before + static_cast<std::size_t>(count));
    if (count == 0) return text;
    if (text.size() > most) refuse("it has more than " + std::to_string(most) + " bytes of text");
  }
}

}  // namespace reprise::plan
