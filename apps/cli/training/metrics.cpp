// The file is begun beside its place at the start of a run, so that a wrong path is refused before
// any work is done. It takes its place with the first line.
#include "apps/cli/training/metrics.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMetricsRemedy = "choose another file with --metrics";

// The step of a line that this class has written; none for any other text.
std::optional<std::int64_t> step_of(const std::string& line) {
  const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step = object.is_object() ? object.find("step") : object.end();
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<std::int64_t>();
}

// Anything but metrics may be a text that somebody needs.
[[noreturn]] void refuse_line(const std::string& path, std::size_t number) {
  throw UsageError(
      fmt::format("{} is no file of metrics, for line {} is none, and would be lost; {}", path,
                  number, kMetricsRemedy));
}

std::string lines_before(const std::string& path, std::int64_t first_step) {
  const std::string text = read_file(path, kMetricsRemedy);
  std::string kept;
  std::size_t number = 1;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end, ++number) {
    const std::size_t newline = text.find('\n', begin);
    end = std::min(newline, text.size() - 1) + 1;
    const std::string line = text.substr(begin, end - begin);
    const std::optional<std::int64_t> step = step_of(line);
    const bool is_last = newline == std::string::npos;
    // A killed run leaves its last line half written.
    const bool is_cut = is_last && line.starts_with('{') && !nlohmann::json::accept(line);
    if (!step && !is_cut) refuse_line(path, number);
    if (step && *step < first_step) kept += line + (is_last ? "\n" : "");
  }
  return kept;
}

std::string lines_to_keep(const std::string& path, std::int64_t first_step) {
  // What is no file, such as a pipe, holds nothing to keep.
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  return lines_before(path, first_step);
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step) {
  if (path.empty()) return;
  const std::string kept = lines_to_keep(path, first_step);
  file_ = std::make_unique<AtomicFile>(path, "--metrics");
  try {
    file_->write(kept);
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}; {}", error.what(), kMetricsRemedy));
  }
}

void MetricsFile::write(const nlohmann::json& object) {
  if (!file_) return;
  file_->write(object.dump() + "\n");
  file_->take_place();
}

}  // namespace reprise::app
