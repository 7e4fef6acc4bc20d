#include "apps/cli/experiment/run_lines.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <system_error>
#include <utility>

#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

bool is_of_kind(const nlohmann::json& line, const char* kind) {
  if (!line.is_object()) return false;
  const auto found = line.find("kind");
  return found != line.end() && *found == kind;
}

bool is_step(const nlohmann::json& line, std::int64_t number) {
  if (!is_of_kind(line, "step")) return false;
  const auto found = line.find("step");
  return found != line.end() && *found == number;
}

}  // namespace

bool is_complete(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string line, last;
  while (std::getline(in, line)) {
    // A line without its end was cut.
    last = in.eof() ? "" : line;
  }
  return is_of_kind(nlohmann::json::parse(last, nullptr, /*allow_exceptions=*/false), "end");
}

std::optional<std::string> kept_lines(const fs::path& file, std::int64_t steps) {
  std::ifstream in(file, std::ios::binary);
  std::string kept, text;
  for (std::int64_t i = 0; i <= steps; ++i) {
    if (!std::getline(in, text) || in.eof()) return std::nullopt;
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (i == 0 ? !is_of_kind(line, "run") : !is_step(line, i)) return std::nullopt;
    kept += text + "\n";
  }
  return kept;
}

RunLines::RunLines(fs::path file, const std::string& beginning) : file_(std::move(file)) {
  std::error_code error;
  fs::create_directories(file_.parent_path(), error);
  replace_file(file_, {beginning});
  out_.open(file_, std::ios::binary | std::ios::app);
}

void RunLines::add(const nlohmann::ordered_json& line) {
  out_ << line.dump() << '\n' << std::flush;
  if (!out_) throw Error(fmt::format("{} cannot be written; is the disk full?", file_.string()));
}

}  // namespace reprise::app
