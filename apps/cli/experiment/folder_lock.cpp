// flock() of a file: it works across containers with one disk, where process ids in a file do not.
#include "apps/cli/experiment/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

// Of the folder and those above it, the ones that there are not yet.
std::vector<fs::path> missing_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path path = folder; !path.empty() && !fs::exists(path, error);
       path = path.parent_path()) {
    missing.push_back(path);
  }
  return missing;
}

[[noreturn]] void refuse_folder(const fs::path& folder, int error) {
  if (error == EWOULDBLOCK) {
    throw UsageError(
        fmt::format("another `reprise experiment` works in {}; let it end, or give another --out",
                    folder.string()));
  }
  throw UsageError(fmt::format("cannot write to folder {} ({}); choose another with --out",
                               folder.string(), std::generic_category().message(error)));
}

// One that has let go has removed the file, which then nobody else finds.
bool is_removed(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 && status.st_nlink == 0;
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) : file_(folder / "experiment.lock") {
  while (fd_ < 0) {
    std::error_code error;
    if (made_.empty()) made_ = missing_folders(folder);
    fs::create_directories(folder, error);
    const int fd = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    // The folder may just have gone with another's lock.
    if (fd < 0 && errno == ENOENT && !error) continue;
    if (fd < 0) refuse_folder(folder, error ? error.value() : errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      ::close(fd);
      if (reason != EINTR) refuse_folder(folder, reason);
    } else if (is_removed(fd)) {
      ::close(fd);
    } else {
      fd_ = fd;
    }
  }
}

// The file goes while it is locked, and folders only if they are empty.
FolderLock::~FolderLock() {
  std::error_code error;
  fs::remove(file_, error);
  for (const fs::path& folder : made_) {
    if (!fs::remove(folder, error)) break;
  }
  ::close(fd_);
}

}  // namespace reprise::app
