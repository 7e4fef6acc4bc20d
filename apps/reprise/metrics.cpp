// The file is opened at the start of a run, so that a wrong path is refused before any work is
// done.
#include "metrics.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace reprise::app {

namespace {

std::string lines_before(const std::string& path, std::int64_t first_step) {
  std::ifstream stream(path);
  std::string kept;
  for (std::string line; std::getline(stream, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    // A line that a killed run left half written does not parse.
    if (object.is_object() && object.value("step", first_step) < first_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step) : path_(path) {
  if (path.empty()) return;
  const std::string kept = first_step > 1 ? lines_before(path, first_step) : "";
  file_.reset(std::fopen(path.c_str(), "w"));
  if (!file_) {
    throw UsageError(fmt::format("cannot write {} ({}); choose another file with --metrics", path,
                                 std::generic_category().message(errno)));
  }
  std::fputs(kept.c_str(), file_.get());
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
