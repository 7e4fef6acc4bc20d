// The live line of a running command. It is redrawn in place on a terminal, and absent elsewhere.
#pragma once

#include <reprise/bytes.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace reprise::app {

struct ProgressFigures {
  std::int64_t step = 0, steps = 0;
  double loss = 0;
  double milliseconds_per_step = 0;
  double tokens_per_second = 0;
  Bytes peak;
  std::int64_t replayed = 0;  // operators run again in the last step
  double seconds_left = 0;
};

// The figures as texts, the most important first.
std::vector<std::string> progress_parts(const ProgressFigures& figures);

// Joins as many of the parts as fit into `columns`.
std::string fit_into(const std::vector<std::string>& parts, std::size_t columns);

class ProgressLine {
 public:
  // Draws to `stream` if that is a terminal that can be redrawn.
  explicit ProgressLine(std::FILE* stream = stderr);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // At most ten times a second.
  void show(const std::vector<std::string>& parts);
  // Takes the line off the screen, so that something else can be printed.
  void clear();

 private:
  void write(const std::string& text);

  std::FILE* stream_;
  bool enabled_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace reprise::app
