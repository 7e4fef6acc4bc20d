// A file of results that takes its place only when there is something in it: until then what was
// there before stays, and a run that fails leaves nothing. Runs with the same place do not come
// into each other's way: each begins a file of its own, and the one that takes its place last
// stays.
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
  // Replaces what was there, in one step, and takes over its permissions. What is written
  // afterwards goes to the same file. Throws Error in the same way; further calls do nothing.
  void take_place();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::filesystem::path path_;
  std::filesystem::path written_;
  bool is_in_place_ = false;
  std::unique_ptr<std::FILE, Close> file_;
};

// Where this process begins a file of results: beside it, hidden, with a name that ends as its own;
// itself where it is no regular file. If something has that name already, the file is begun under
// a further one.
std::filesystem::path place_beside(const std::filesystem::path& path);

}  // namespace reprise::app
