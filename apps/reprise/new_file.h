// A file of results that takes its place only when there is something in it: until then what was
// there before stays, and a run that fails leaves nothing.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace reprise::app {

class NewFile {
 public:
  // Begins a file beside `path`, to show that it can be written; links are followed. What is no
  // regular file (a pipe, a terminal) is taken as it is, for it has no earlier contents. Throws
  // UsageError, naming path, reason and `option`, if it cannot be written.
  NewFile(const std::filesystem::path& path, const char* option);
  // Removes what has not taken its place.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // As it was given, and where it is begun.
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& written() const { return written_; }

  std::FILE* stream() const { return file_.get(); }
  // Adds to it and flushes. Throws Error, naming path and reason, if it cannot.
  void write(const std::string& text);
  // Replaces what was there, in one step. What is written afterwards goes to the same file. Throws
  // Error in the same way; further calls do nothing.
  void take_place();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::filesystem::path path_;
  std::filesystem::path written_;
  bool is_in_place_;
  std::unique_ptr<std::FILE, Close> file_;
};

// Where a file of results is begun: beside it, hidden, with a name that ends as its own; itself
// where it is no regular file.
std::filesystem::path place_beside(const std::filesystem::path& path);

}  // namespace reprise::app
