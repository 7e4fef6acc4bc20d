// POSIX calls, for their errno.
#include "apps/cli/io/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <reprise/bytes.h>
#include <reprise/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "apps/cli/training/memory_need.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

[[noreturn]] void fail(const fs::path& path, int error, const std::string& remedy) {
  throw UsageError(fmt::format("cannot read {}: {}; {}", path.string(),
                               std::generic_category().message(error), remedy));
}

class Input {
 public:
  Input(const fs::path& path, const std::string& remedy)
      : path_(path),
        remedy_(remedy),
        // Without waiting: the file may have become a pipe since it was looked at.
        fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (fd_ < 0) fail(path, errno, remedy);
  }
  ~Input() { ::close(fd_); }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  std::string read_all() {
    check_size();
    std::string bytes;
    for (std::string chunk(kChunk, '\0');;) {
      const ssize_t count = ::read(fd_, chunk.data(), chunk.size());
      if (count == 0) return bytes;
      if (count < 0 && errno != EINTR) fail(path_, errno, remedy_);
      if (count > 0) bytes.append(chunk, 0, static_cast<std::size_t>(count));
    }
  }

 private:
  void check_size() {
    struct stat status = {};
    if (::fstat(fd_, &status) != 0) fail(path_, errno, remedy_);
    if (static_cast<double>(status.st_size) > physical_memory()) {
      throw UsageError(fmt::format("{} holds {}, more than this machine's memory of {}; {}",
                                   path_.string(), to_string(Bytes(status.st_size)),
                                   to_string(Bytes(static_cast<std::int64_t>(physical_memory()))),
                                   remedy_));
    }
  }

  const fs::path& path_;
  const std::string& remedy_;
  int fd_;
};

}  // namespace

bool regular_file_exists(const fs::path& path, const std::string& remedy) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return false;
  if (status.type() == fs::file_type::none) fail(path, error.value(), remedy);
  if (!fs::is_regular_file(status)) {
    throw UsageError(fmt::format("{} is not a regular file; {}", path.string(), remedy));
  }
  return true;
}

std::string read_regular_file(const fs::path& path, const std::string& remedy) {
  if (!regular_file_exists(path, remedy)) fail(path, ENOENT, remedy);
  return Input(path, remedy).read_all();
}

}  // namespace reprise::app
