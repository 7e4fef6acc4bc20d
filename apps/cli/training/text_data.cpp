// All text is held in memory: a byte a token is little beside the activations.
#include "apps/cli/training/text_data.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <reprise/error.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

using Paths = std::vector<fs::path>;

// Prose and source code, sorted; measurements, logs and tables say little and change with every
// run. Files without an extension are told apart by is_data().
constexpr std::array<std::string_view, 20> kTextExtensions = {
    "",    ".c",   ".cc", ".cmake", ".cpp", ".css", ".h",    ".hpp", ".html", ".js",
    ".md", ".pod", ".py", ".rst",   ".sh",  ".tex", ".toml", ".txt", ".yaml", ".yml"};

// One byte of so many is kept for validation.
constexpr std::size_t kValidationShare = 10;

[[noreturn]] void fail(const fs::path& path, const std::error_code& error,
                       const std::string& remedy) {
  throw UsageError(fmt::format("cannot read {}: {}; {}", path.string(), error.message(), remedy));
}

bool looks_binary(std::string_view bytes) {
  return bytes.substr(0, 8000).find('\0') != std::string_view::npos;
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Build trees and virtual environments hold text that nobody wrote.
bool is_generated(const fs::path& folder) {
  std::error_code error;
  return folder.filename() == "build" || fs::exists(folder / "CMakeCache.txt", error) ||
         fs::exists(folder / "pyvenv.cfg", error);
}

bool has_text_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::binary_search(kTextExtensions, extension);
}

// Files without an extension are often data, such as test inputs named by their hash. Prose and
// build files are named README or Makefile, or copyright as in Debian; scripts begin with "#!".
bool is_data(const fs::path& path, std::string_view bytes) {
  const std::string name = path.filename().string();
  return !path.has_extension() && !(name[0] >= 'A' && name[0] <= 'Z') && name != "copyright" &&
         !bytes.starts_with("#!");
}

// Compares what the paths lead to, for they may be relative or go through links.
bool is_among(const Paths& paths, const fs::path& path) {
  return std::ranges::any_of(paths, [&](const fs::path& each) {
    std::error_code error;
    return fs::equivalent(each, path, error);
  });
}

// The entries of the folder itself; none, with the error set, if it cannot be searched.
Paths entries_of(const fs::path& folder, std::error_code& error) {
  Paths entries;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  return entries;
}

// Links to folders are not followed, for they may lead back; what cannot be looked at is passed
// over.
void collect(const Paths& entries, const Paths& left_out, Paths& files) {
  for (const fs::path& path : entries) {
    std::error_code error;
    const fs::file_type own = fs::symlink_status(path, error).type();
    const fs::file_type type = fs::status(path, error).type();
    if (is_hidden(path) || is_among(left_out, path)) continue;
    if (own == fs::file_type::directory && !is_generated(path)) {
      collect(entries_of(path, error), left_out, files);
    } else if (type == fs::file_type::regular && has_text_extension(path)) {
      files.push_back(path);
    }
  }
}

Paths files_below(const fs::path& folder, const Paths& left_out, const std::string& remedy) {
  std::error_code error;
  const Paths entries = entries_of(folder, error);
  if (error) fail(folder, error, remedy);
  Paths files;
  collect(entries, left_out, files);
  std::ranges::sort(files);
  return files;
}

void append_folder(const fs::path& folder, const Paths& left_out, const std::string& remedy,
                   TextData& data, std::string& all) {
  for (const fs::path& file : files_below(folder, left_out, remedy)) {
    const std::string bytes = read_file(file, remedy);
    if (bytes.empty() || looks_binary(bytes) || is_data(file, bytes)) continue;
    all += bytes;
    ++data.files;
  }
}

void append_file(const fs::path& file, const std::string& remedy, TextData& data,
                 std::string& all) {
  const std::string bytes = read_file(file, remedy);
  if (looks_binary(bytes)) {
    throw UsageError(fmt::format("{} is a binary file; {}", file.string(), remedy));
  }
  all += bytes;
  ++data.files;
}

std::string default_folder() {
  std::error_code error;
  return fs::is_directory(REPRISE_SOURCE_DIR, error) ? REPRISE_SOURCE_DIR : ".";
}

}  // namespace

TextData load_text(const std::vector<std::string>& paths, const Paths& left_out) {
  const std::string remedy = "give text files with --data";
  const std::vector<std::string> sources = paths.empty() ? std::vector{default_folder()} : paths;
  TextData data;
  std::string all;
  for (const std::string& source : sources) {
    std::error_code error;
    const fs::file_status status = fs::status(source, error);
    if (status.type() == fs::file_type::not_found) {
      throw UsageError(fmt::format("no such file or folder: {}; {}", source, remedy));
    }
    if (status.type() == fs::file_type::none) fail(source, error, remedy);
    fs::is_directory(status) ? append_folder(source, left_out, remedy, data, all)
                             : append_file(source, remedy, data, all);
  }
  const std::string named = sources.size() == 1
                                ? sources[0]
                                : fmt::format("{} and {} more", sources[0], sources.size() - 1);
  if (all.empty()) {
    throw UsageError(fmt::format(
        "no text in {} (of a folder, files such as .txt, .md or .cpp count); name text files "
        "themselves with --data",
        named));
  }
  data.origin = data.files == 1 ? named : fmt::format("{} files of {}", data.files, named);
  data.fingerprint = XXH3_64bits(all.data(), all.size());
  const std::size_t split = all.size() - all.size() / kValidationShare;
  data.validation = all.substr(split);
  all.resize(split);
  data.training = std::move(all);
  return data;
}

void check_context(const TextData& data, std::int64_t context) {
  // The smaller part, whatever the size of the data.
  const auto needed = static_cast<std::size_t>(context) + 1;
  if (data.validation.size() >= needed) return;
  throw UsageError(fmt::format(
      "--context {} is longer than the part of the data kept for validation, a tenth: {} of {} "
      "bytes, where {} are needed; give --data of at least {} bytes, or a shorter --context",
      context, data.validation.size(), data.training.size() + data.validation.size(), needed,
      needed * kValidationShare));
}

}  // namespace reprise::app
