// POSIX calls rather than streams, because only they can flush to the disk: a rename may reach the
// disk before the bytes of the renamed file do.
#include "apps/cli/io/sealed_file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "apps/cli/io/regular_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

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

[[noreturn]] void fail(const char* action, const fs::path& path) {
  throw Error(fmt::format("cannot {} {}: {}", action, path.string(),
                          std::generic_category().message(errno)));
}

// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags)
      : path_(path), fd_(::open(path.c_str(), flags, 0644)) {
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

 private:
  fs::path path_;
  int fd_;
};

}  // namespace

fs::path path_aside(const fs::path& path) { return path.string() + ".partial"; }

void replace_file(const fs::path& path, std::initializer_list<std::string_view> parts) {
  const fs::path aside = path_aside(path);
  try {
    Descriptor file(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
    for (const std::string_view part : parts) file.write(part);
    file.flush();
    if (::rename(aside.c_str(), path.c_str()) != 0) fail("rename to", path);
  } catch (const Error&) {
    // A full disk is not to stay full of it.
    ::unlink(aside.c_str());
    throw;
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  Descriptor(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC).flush();
}

void write_sealed(const fs::path& path, std::string_view contents) {
  const Seal seal = seal_of(contents);
  replace_file(path, {{reinterpret_cast<const char*>(&seal), sizeof seal}, contents});
}

std::string read_sealed(const fs::path& path, const std::string& remedy) {
  std::string bytes =
      read_regular_file(path, remedy.empty() ? "choose another --checkpoint-dir" : remedy);
  const auto refuse = [&](const std::string& reason) {
    throw UsageError(
        fmt::format("{} {}; {}", path.string(), reason,
                    remedy.empty() ? "restore it or start anew in another folder" : remedy));
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
  if (seal_of(bytes).hash != found.hash) {
    refuse("is damaged: its bytes do not match their checksum");
  }
  return bytes;
}

void require_writable_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  std::error_code ignored;
  const bool is_folder = fs::is_directory(folder, ignored);
  if (is_folder && ::access(folder.c_str(), W_OK | X_OK) == 0) return;
  const int reason = is_folder ? errno : error ? error.value() : ENOTDIR;
  throw UsageError(
      fmt::format("cannot write to folder {} ({}); choose another with --checkpoint-dir",
                  folder.string(), std::generic_category().message(reason)));
}

}  // namespace reprise::app
