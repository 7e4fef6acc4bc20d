// Files that are whole or not there. A result is written beside its place and renamed over it, so
// that a run that fails leaves the old result. A checkpoint also reaches the disk before it is
// renamed, and has a seal in front: its length and a hash (XXH3, 64 bits), by which damage is
// recognised.
#pragma once

#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::app {

// A file of results under construction, named .partial.PID.NAME beside its place. It follows links,
// and writes to what is no regular file (a pipe, a terminal) directly.
class AtomicFile {
 public:
  // Throws UsageError, naming path, reason and `option`, if the file cannot be written.
  AtomicFile(const std::filesystem::path& path, const char* option);
  // Removes what has not taken its place.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // The path as it was given, and the file beside it.
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& written() const { return written_; }

  std::FILE* stream() const { return file_.get(); }
  // Appends and flushes. Throws Error, naming path and reason.
  void write(std::string_view text);
  // Replaces the old file in one step and keeps its permissions. Later writes go to the same file;
  // later calls do nothing. Throws Error.
  void take_place();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::filesystem::path path_, place_, written_;
  bool is_in_place_ = false;
  std::unique_ptr<std::FILE, Close> file_;
};

// Replaces the file by the joined parts, by way of NAME.partial, and flushes it to the disk. Throws
// Error, naming path and reason; the old file is then untouched and nothing left beside it.
void replace_file(const std::filesystem::path& path, std::initializer_list<std::string_view> parts);

// replace_file() with the seal in front of the contents.
void write_sealed(const std::filesystem::path& path, std::string_view contents);
// Throws UsageError, with the remedies of a checkpoint, if the file cannot be read, has no seal, is
// cut short or is changed.
std::string read_sealed(const std::filesystem::path& path);

// Whether there is a file. Throws UsageError, ending in `remedy`, if something else is there or
// nobody can tell.
bool file_exists(const std::filesystem::path& path, const std::string& remedy);
// All bytes of a regular file, for a device or a pipe might never end. Throws UsageError, ending in
// `remedy`.
std::string read_file(const std::filesystem::path& path, const std::string& remedy);

// Makes the folder if it is missing. Throws UsageError if no file can be created in it.
void require_writable_folder(const std::filesystem::path& folder);

// A path of an option.
struct Place {
  const char* option;
  std::filesystem::path path;
};
// Throws UsageError, naming both options, if two places of `written` are one file, or one of them
// is among `read`. Links are followed. A device may be written twice. Empty paths do not count.
void refuse_overlaps(const std::vector<Place>& written, const std::vector<Place>& read);
// The same for one result beside the files of --data.
void refuse_overlap(const char* option, const std::string& path,
                    const std::vector<std::string>& data);

}  // namespace reprise::app
