// The figures of every step as a file of JSON lines, for plots and for comparing runs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace reprise::app {

class MetricsFile {
 public:
  // path empty: write() does nothing. first_step 1: an existing file is replaced; later: its lines
  // for earlier steps are kept, and those that the resumed run will write again are dropped. Throws
  // UsageError if the file cannot be written, or if it holds anything but metrics.
  MetricsFile(const std::string& path, std::int64_t first_step);

  // One line, flushed. Throws Error, naming path and reason, if it cannot be written.
  void write(const nlohmann::json& object);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace reprise::app
