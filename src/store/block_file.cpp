#include "store/block_file.h"

#include <fcntl.h>
#include <reprise/error.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

namespace reprise::store {
namespace {

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// A file that no folder lists, so that the system takes its room back however the process ends.
int open_without_name(const std::string& folder) {
  const int unnamed = ::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  // EISDIR and EOPNOTSUPP: the system or the file system does not know such files.
  if (unnamed >= 0 || (errno != EISDIR && errno != EOPNOTSUPP && errno != EINVAL)) return unnamed;
  std::string name = folder + "/reprise-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

class PosixFile final : public BlockFile {
 public:
  explicit PosixFile(std::string folder)
      : folder_(std::move(folder)), file_(open_without_name(folder_)) {
    if (file_ < 0) {
      throw StoreError(
          "disk store: cannot make a file in '" + folder_ +
          "': " + std::generic_category().message(errno) +
          "; give a folder that exists, can be written to, and is on a disk with room");
    }
    direct_ = set_direct(true);
  }
  ~PosixFile() override { ::close(file_); }

  std::size_t write(const std::byte* from, std::size_t bytes, std::int64_t offset) override {
    const auto moved = again([&] { return ::pwrite(file_, from, bytes, offset); });
    if (moved < 0) throw_errno("write");
    if (!direct_) {
      // Begin to write it out, so that it can be dropped from the cache soon: memory was to be
      // freed.
      ::sync_file_range(file_, offset, moved, SYNC_FILE_RANGE_WRITE);
    }
    return static_cast<std::size_t>(moved);
  }

  std::size_t read(std::byte* to, std::size_t bytes, std::int64_t offset) override {
    const auto moved = again([&] { return ::pread(file_, to, bytes, offset); });
    if (moved < 0) throw_errno("read");
    if (!direct_) ::posix_fadvise(file_, offset, moved, POSIX_FADV_DONTNEED);
    return static_cast<std::size_t>(moved);
  }

  std::string place() const override { return "a file in " + folder_; }

 private:
  bool set_direct(bool on) const {
    const int flags = ::fcntl(file_, F_GETFL);
    return flags >= 0 && ::fcntl(file_, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  }

  // Repeats what a signal interrupted, and what failed only because it was direct: some file
  // systems accept the flag and refuse its use.
  template <class F>
  ssize_t again(F&& move) {
    for (;;) {
      const ssize_t moved = move();
      if (moved >= 0 || (errno != EINTR && errno != EINVAL)) return moved;
      if (errno == EINVAL) {
        if (!direct_.exchange(false) || !set_direct(false)) return moved;
      }
    }
  }

  const std::string folder_;
  const int file_;
  std::atomic<bool> direct_ = false;
};

}  // namespace

std::unique_ptr<BlockFile> open_block_file(const std::string& folder) {
  return std::make_unique<PosixFile>(folder);
}

}  // namespace reprise::store
