// One `reprise experiment` a folder: two would write the same lines.
#pragma once

#include <filesystem>
#include <vector>

namespace reprise::app {

// Holds FOLDER/experiment.lock while it lives; the system lets go of it when the process ends,
// however that is. The folder is made if it is missing, and goes with the lock if nothing has come
// into it, so that an experiment that is refused leaves nothing.
class FolderLock {
 public:
  // Throws UsageError, naming the folder: another process or FolderLock holds it, or the folder
  // cannot be written.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path file_;
  std::vector<std::filesystem::path> made_;  // folders, the innermost first
  int fd_ = -1;
};

}  // namespace reprise::app
