// The name beside ends as the other does, for writers choose a format by it, and is hidden, for
// what a killed run leaves there is nobody's data. What has that name is never opened: it is
// another run's, or a link that somebody has laid there.
#include "apps/cli/io/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr int kMostLinks = 40;

std::string reason() { return std::generic_category().message(errno); }

// Such as /dev/stdout: what it leads to is open already, under whatever name.
bool is_descriptor(const fs::path& path) {
  return path.string().starts_with("/proc/") || path.string().starts_with("/dev/fd/");
}

// Also where the last link leads to nothing yet.
fs::path behind_links(fs::path path) {
  std::error_code error;
  for (int i = 0; i < kMostLinks && !is_descriptor(path) && fs::is_symlink(path, error); ++i) {
    const fs::path target = fs::read_symlink(path, error);
    path = target.is_absolute() ? target : path.parent_path() / target;
  }
  return path;
}

bool is_replaceable(const fs::path& path) {
  if (is_descriptor(path)) return false;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return status.type() == fs::file_type::not_found || fs::is_regular_file(status);
}

// Of a regular file.
std::optional<mode_t> permissions(const fs::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return status.st_mode & 0777;
}

// Process ids come back, above all in containers: what a killed run has left may have this one's.
fs::path nth_place(const fs::path& place, int n) {
  const std::string further = n == 0 ? "" : fmt::format("-{}", n);
  return place.parent_path() /
         fmt::format(".partial.{}{}.{}", ::getpid(), further, place.filename().string());
}

// Null, with errno, if there is no making it.
std::FILE* make_beside(const fs::path& place, fs::path& written) {
  constexpr int kMostTries = 1000;
  // To nobody who must not read what it is to replace; some write to it by its name.
  const mode_t mode = (permissions(place).value_or(0666) & 0666) | 0600;
  int fd = -1;
  for (int n = 0; n < kMostTries; ++n) {
    written = nth_place(place, n);
    fd = ::open(written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd >= 0 || errno != EEXIST) break;
  }
  if (fd < 0) return nullptr;
  std::FILE* const file = ::fdopen(fd, "w");
  if (file == nullptr) {
    const int error = errno;
    ::close(fd);
    ::unlink(written.c_str());
    errno = error;
  }
  return file;
}

}  // namespace

fs::path place_beside(const fs::path& path) {
  const fs::path place = behind_links(path);
  return is_replaceable(place) ? nth_place(place, 0) : path;
}

NewFile::NewFile(const fs::path& path, const char* option) : path_(path), written_(path) {
  const fs::path place = behind_links(path);
  is_in_place_ = !is_replaceable(place);
  file_.reset(is_in_place_ ? std::fopen(path.c_str(), "we") : make_beside(place, written_));
  if (file_) return;
  const std::string why = reason();
  std::error_code ignored;
  // The file itself may well be writable, and its folder not.
  const std::string where =
      !is_in_place_ && fs::exists(path_, ignored) ? written_.string() + ": " : "";
  throw UsageError(fmt::format("cannot write {} ({}{}); choose another file with {}",
                               path_.string(), where, why, option));
}

NewFile::~NewFile() {
  if (is_in_place_) return;
  std::error_code ignored;
  fs::remove(written_, ignored);
}

void NewFile::write(const std::string& text) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
                          std::fflush(file_.get()) == 0;
  if (!is_written) throw Error(fmt::format("cannot write to {}: {}", path_.string(), reason()));
}

void NewFile::take_place() {
  if (is_in_place_) return;
  const fs::path place = behind_links(path_);
  // Where a file system knows no permissions, there are none to keep.
  if (const auto before = permissions(place)) ::fchmod(::fileno(file_.get()), *before);
  if (std::rename(written_.c_str(), place.c_str()) != 0) {
    throw Error(fmt::format("cannot write to {}: {}", path_.string(), reason()));
  }
  is_in_place_ = true;
}

}  // namespace reprise::app
