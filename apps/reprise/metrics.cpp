// The file is opened at the start of a run, so that a wrong path is refused before any work is
// done.
#include "apps/reprise/metrics.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/reprise/sealed_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

std::string lines_before(const std::string& path, std::int64_t first_step) {
  std::ifstream stream(path);
  if (!stream) {
    throw UsageError(fmt::format(
        "cannot read {}; check its permissions, or choose another file with --metrics", path));
  }
  std::string kept;
  for (std::string line; std::getline(stream, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    // A line that a killed run left half written does not parse.
    const auto step = object.is_object() ? object.find("step") : object.end();
    if (step == object.end() || !step->is_number_integer()) continue;
    if (step->get<std::int64_t>() < first_step) kept += line + "\n";
  }
  return kept;
}

// Aside first, so that a full disk or a kill costs no line of the earlier run.
void drop_lines_from(const std::string& path, std::int64_t first_step) {
  try {
    // A link stays one; what is no file, such as a pipe, holds nothing to drop.
    if (!fs::is_regular_file(path)) return;
    replace_file(fs::canonical(path), {lines_before(path, first_step)});
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw UsageError(fmt::format("{}; choose another file with --metrics", error.what()));
  }
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step) : path_(path) {
  if (path.empty()) return;
  const bool resumed = first_step > 1;
  if (resumed) drop_lines_from(path, first_step);
  file_.reset(std::fopen(path.c_str(), resumed ? "a" : "w"));
  if (!file_) {
    throw UsageError(fmt::format("cannot write {} ({}); choose another file with --metrics", path,
                                 std::generic_category().message(errno)));
  }
}

void MetricsFile::write(const nlohmann::json& object) {
  if (!file_) return;
  const std::string line = object.dump() + "\n";
  if (std::fputs(line.c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0) {
    throw Error(
        fmt::format("cannot write to {}: {}", path_, std::generic_category().message(errno)));
  }
}

}  // namespace reprise::app
