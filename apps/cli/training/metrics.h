// The figures of every step as a file of JSON lines, for plots and for comparing runs.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

class MetricsFile {
 public:
  // path empty: write() does nothing. With the first line an existing file is replaced, and stays
  // as it is if none comes; of its lines those before first_step are kept, for a resumed run.
  // Throws UsageError if the file cannot be written, or if it holds anything but metrics.
  MetricsFile(const std::string& path, std::int64_t first_step);

  // One line, flushed. Throws Error, naming path and reason, if it cannot be written.
  void write(const nlohmann::json& object);

 private:
  std::unique_ptr<AtomicFile> file_;
};

}  // namespace reprise::app
