// All text is held in memory: a byte a token is little beside the activations.
#include "apps/reprise/text_data.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <reprise/bytes.h>
#include <reprise/error.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

using Paths = std::vector<fs::path>;

// Prose and source code, sorted; measurements, logs and tables say little and change with every
// run. Without an extension: LICENSE, Makefile, scripts.
constexpr std::array<std::string_view, 19> kTextExtensions = {
    "",    ".c",  ".cc",  ".cmake", ".cpp", ".css",  ".h",   ".hpp",  ".html", ".js",
    ".md", ".py", ".rst", ".sh",    ".tex", ".toml", ".txt", ".yaml", ".yml"};

std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad()) {
    throw UsageError(fmt::format("cannot read {}; check its permissions", path.string()));
  }
  return bytes;
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Build trees and virtual environments hold text that nobody wrote.
bool is_generated(const fs::path& folder) {
  return folder.filename() == "build" || fs::exists(folder / "CMakeCache.txt") ||
         fs::exists(folder / "pyvenv.cfg");
}

bool has_text_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::binary_search(kTextExtensions, extension);
}

// Compares what the paths lead to, for they may be relative or go through links.
bool is_among(const Paths& paths, const fs::path& path) {
  return std::ranges::any_of(paths, [&](const fs::path& each) {
    std::error_code error;
    return fs::equivalent(each, path, error);
  });
}

Paths files_below(const fs::path& folder, const Paths& left_out) {
  Paths files;
  const auto options = fs::directory_options::skip_permission_denied;
  for (auto entry = fs::recursive_directory_iterator(folder, options);
       entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->is_directory()) {
      if (is_hidden(*entry) || is_generated(*entry) || is_among(left_out, *entry)) {
        entry.disable_recursion_pending();
      }
    } else if (entry->is_regular_file() && !is_hidden(*entry) && has_text_extension(*entry) &&
               !is_among(left_out, *entry)) {
      files.push_back(entry->path());
    }
  }
  std::ranges::sort(files);
  return files;
}

void append_folder(const fs::path& folder, const Paths& left_out, TextData& data,
                   std::string& all) {
  for (const fs::path& file : files_below(folder, left_out)) {
    const std::string bytes = read_file(file);
    if (bytes.empty() || looks_binary(bytes)) continue;
    all += bytes;
    ++data.files;
  }
}

void append_file(const fs::path& file, TextData& data, std::string& all) {
  const std::string bytes = read_file(file);
  if (looks_binary(bytes)) {
    throw UsageError(
        fmt::format("{} is a binary file; give text files with --data", file.string()));
  }
  all += bytes;
  ++data.files;
}

std::string default_folder() {
  return fs::is_directory(REPRISE_SOURCE_DIR) ? REPRISE_SOURCE_DIR : fs::current_path().string();
}

}  // namespace

bool looks_binary(std::string_view bytes) {
  return bytes.substr(0, 8000).find('\0') != std::string_view::npos;
}

TextData load_text(const std::vector<std::string>& paths, const Paths& left_out) {
  const std::vector<std::string> sources = paths.empty() ? std::vector{default_folder()} : paths;
  TextData data;
  std::string all;
  for (const std::string& source : sources) {
    std::error_code error;
    const fs::file_status status = fs::status(source, error);
    if (!fs::exists(status)) {
      throw UsageError(
          fmt::format("no such file or folder: {}; give text files with --data", source));
    }
    fs::is_directory(status) ? append_folder(source, left_out, data, all)
                             : append_file(source, data, all);
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
  const std::size_t split = all.size() - all.size() / 10;
  data.validation = all.substr(split);
  all.resize(split);
  data.training = std::move(all);
  return data;
}

void check_context(const TextData& data, std::int64_t context) {
  const auto shorter = std::min(data.training.size(), data.validation.size());
  if (static_cast<std::int64_t>(shorter) <= context) {
    throw UsageError(fmt::format(
        "context {} is longer than the data: {} bytes to train on and {} to validate on, and both "
        "need at least {}; give more --data or a shorter --context",
        context, data.training.size(), data.validation.size(), context + 1));
  }
}

}  // namespace reprise::app
