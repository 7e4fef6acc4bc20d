#include "apps/cli/io/atomic_file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

std::string message_of(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail(const char* action, const fs::path& path) {
  throw Error(fmt::format("cannot {} {}: {}", action, path.string(), message_of(errno)));
}

// Such as /dev/stdout, which is open already.
bool is_device(const fs::path& path) {
  return path.string().starts_with("/proc/") || path.string().starts_with("/dev/");
}

// Also where the last link leads to no file yet.
fs::path behind_links(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMostLinks && !is_device(path) && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

bool is_replaceable(const fs::path& place) {
  std::error_code error;
  const fs::file_status status = fs::status(place, error);
  return !is_device(place) &&
         (status.type() == fs::file_type::not_found || fs::is_regular_file(status));
}

std::optional<mode_t> permissions_of(const fs::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status.st_mode & 0777;
}

// What has the name already was left by a killed run with the same id, or is a link that somebody
// has laid there.
std::FILE* make_beside(const fs::path& place, const fs::path& written) {
  ::unlink(written.c_str());
  // Whoever must not read the old file must not read the new one.
  const mode_t mode = (permissions_of(place).value_or(0666) & 0666) | 0600;
  const int fd = ::open(written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  return fd < 0 ? nullptr : ::fdopen(fd, "w");
}

constexpr std::string_view kMagic = "reprise sealed 1";

struct Seal {
  char magic[kMagic.size()];
  std::uint64_t length;
  std::uint64_t hash;
};

Seal seal_of(std::string_view contents) {
  Seal seal{{}, contents.size(), XXH3_64bits(contents.data(), contents.size())};
  std::memcpy(seal.magic, kMagic.data(), kMagic.size());
  return seal;
}

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags)
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail("open", path);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) fail("write", path_);
      if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  void flush() {
    if (::fsync(fd_) != 0) fail("flush", path_);
  }
  std::string read_all() {
    std::string bytes;
    for (std::string chunk(std::size_t{1} << 20, '\0');;) {
      const ssize_t count = ::read(fd_, chunk.data(), chunk.size());
      if (count == 0) return bytes;
      if (count < 0 && errno != EINTR) fail("read", path_);
      if (count > 0) bytes.append(chunk, 0, static_cast<std::size_t>(count));
    }
  }

 private:
  fs::path path_;
  int fd_;
};

bool are_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return !is_device(a);
  const fs::path whole_a = fs::weakly_canonical(fs::absolute(a, error), error);
  if (error) return false;
  return whole_a == fs::weakly_canonical(fs::absolute(b, error), error) && !error;
}

void refuse_same(const Place& written, const Place& other) {
  if (written.path.empty() || other.path.empty() || !are_same(written.path, other.path)) return;
  throw UsageError(fmt::format("{} would write over {} of {}: choose another path for {}",
                               written.option, other.path.string(), other.option, written.option));
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path, const char* option)
    : path_(path),
      place_(behind_links(path)),
      written_(path),
      is_in_place_(!is_replaceable(place_)) {
  if (!is_in_place_) {
    written_ = place_.parent_path() /
               fmt::format(".partial.{}.{}", ::getpid(), place_.filename().string());
  }
  file_.reset(is_in_place_ ? std::fopen(path.c_str(), "we") : make_beside(place_, written_));
  if (file_) return;
  throw UsageError(fmt::format("cannot write {} ({}); choose another file with {}", path_.string(),
                               message_of(errno), option));
}

AtomicFile::~AtomicFile() {
  if (!is_in_place_) ::unlink(written_.c_str());
}

void AtomicFile::write(std::string_view text) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
                          std::fflush(file_.get()) == 0;
  if (!is_written) fail("write to", path_);
}

void AtomicFile::take_place() {
  if (is_in_place_) return;
  // A file system without permissions refuses, and has none to keep.
  if (const auto before = permissions_of(place_)) ::fchmod(::fileno(file_.get()), *before);
  if (std::rename(written_.c_str(), place_.c_str()) != 0) fail("write to", path_);
  is_in_place_ = true;
}

void replace_file(const fs::path& path, std::initializer_list<std::string_view> parts) {
  const fs::path aside = path.string() + ".partial";
  try {
    Descriptor file(aside, O_WRONLY | O_CREAT | O_TRUNC);
    for (const std::string_view part : parts) file.write(part);
    // Otherwise the new name may reach the disk before the bytes.
    file.flush();
    if (::rename(aside.c_str(), path.c_str()) != 0) fail("rename to", path);
  } catch (const Error&) {
    ::unlink(aside.c_str());
    throw;
  }
  Descriptor(path.has_parent_path() ? path.parent_path() : fs::path("."), O_RDONLY | O_DIRECTORY)
      .flush();
}

void write_sealed(const fs::path& path, std::string_view contents) {
  const Seal seal = seal_of(contents);
  replace_file(path, {{reinterpret_cast<const char*>(&seal), sizeof seal}, contents});
}

std::string read_sealed(const fs::path& path) {
  std::string bytes = read_file(path, "choose another --checkpoint-dir");
  const auto refuse = [&](const std::string& reason) {
    throw UsageError(
        fmt::format("{} {}; restore it or start anew in another folder", path.string(), reason));
  };
  Seal found;
  if (bytes.size() < sizeof found || !bytes.starts_with(kMagic)) {
    refuse("is not a file of reprise, or is damaged at its beginning");
  }
  std::memcpy(&found, bytes.data(), sizeof found);
  bytes.erase(0, sizeof found);
  if (bytes.size() != found.length) {
    refuse(fmt::format("is damaged: it holds {} bytes instead of {}", bytes.size(), found.length));
  }
  if (seal_of(bytes).hash != found.hash)
    refuse("is damaged: its bytes do not match their checksum");
  return bytes;
}

bool file_exists(const fs::path& path, const std::string& remedy) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return false;
  if (status.type() == fs::file_type::none) {
    throw UsageError(fmt::format("cannot read {}: {}; {}", path.string(), error.message(), remedy));
  }
  if (!fs::is_regular_file(status)) {
    throw UsageError(fmt::format("{} is not a regular file; {}", path.string(), remedy));
  }
  return true;
}

std::string read_file(const fs::path& path, const std::string& remedy) {
  if (!file_exists(path, remedy)) {
    throw UsageError(
        fmt::format("cannot read {}: {}; {}", path.string(), message_of(ENOENT), remedy));
  }
  try {
    return Descriptor(path, O_RDONLY | O_NONBLOCK).read_all();
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}; {}", error.what(), remedy));
  }
}

void require_writable_folder(const fs::path& folder) {
  std::error_code error, ignored;
  fs::create_directories(folder, error);
  const bool is_folder = fs::is_directory(folder, ignored);
  if (is_folder && ::access(folder.c_str(), W_OK | X_OK) == 0) return;
  const int reason = is_folder ? errno : error ? error.value() : ENOTDIR;
  throw UsageError(
      fmt::format("cannot write to folder {} ({}); choose another with --checkpoint-dir",
                  folder.string(), message_of(reason)));
}

void refuse_overlaps(const std::vector<Place>& written, const std::vector<Place>& read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (std::size_t j = i + 1; j < written.size(); ++j) refuse_same(written[i], written[j]);
    for (const Place& each : read) refuse_same(written[i], each);
  }
}

void refuse_overlap(const char* option, const std::string& path,
                    const std::vector<std::string>& data) {
  for (const std::string& each : data) refuse_same({option, path}, {"--data", each});
}

}  // namespace reprise::app
