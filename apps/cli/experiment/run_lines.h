// The lines of one run's file (findings_runs.h), which grow with the run and outlive its process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace reprise::app {

// Whether the file has the line of its end.
bool is_complete(const std::filesystem::path& file);

// The line of the run and those of its first `steps` steps, as they stand in the file; nothing if
// one of them is missing, cut or another, for then the run cannot go on from there.
std::optional<std::string> kept_lines(const std::filesystem::path& file, std::int64_t steps);

class RunLines {
 public:
  // Replaces the file by `beginning`, whole lines, in one step, and makes its folder. Throws Error,
  // naming the file, as add() does, if it cannot be written.
  RunLines(std::filesystem::path file, const std::string& beginning);

  void add(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path file_;
  std::ofstream out_;
};

}  // namespace reprise::app
