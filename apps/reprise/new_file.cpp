// The name beside ends as the other does, for writers choose a format by it, and is hidden, for
// what a killed run leaves there is nobody's data.
#include "apps/reprise/new_file.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <cerrno>
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

}  // namespace

fs::path place_beside(const fs::path& path) {
  const fs::path place = behind_links(path);
  if (!is_replaceable(place)) return path;
  return place.parent_path() / (".partial." + place.filename().string());
}

NewFile::NewFile(const fs::path& path, const char* option)
    : path_(path), written_(place_beside(path)), is_in_place_(written_ == path) {
  file_.reset(std::fopen(written_.c_str(), "we"));
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
  if (std::rename(written_.c_str(), behind_links(path_).c_str()) != 0) {
    throw Error(fmt::format("cannot write to {}: {}", path_.string(), reason()));
  }
  is_in_place_ = true;
}

}  // namespace reprise::app
