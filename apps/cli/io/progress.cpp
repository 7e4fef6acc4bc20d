// Escape sequences are limited to two that every terminal of the last decades knows.
#include "apps/cli/io/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "apps/cli/io/figures.h"

namespace reprise::app {

namespace {

constexpr auto kBetweenDrawings = std::chrono::milliseconds(100);

bool can_redraw(std::FILE* stream) {
  const char* kind = std::getenv("TERM");
  return isatty(fileno(stream)) && (!kind || std::string_view(kind) != "dumb");
}

std::size_t terminal_columns(std::FILE* stream) {
  winsize size = {};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::vector<std::string> progress_parts(const ProgressFigures& figures) {
  const std::string total = fmt::format("{}", figures.steps);
  std::vector<std::string> parts = {
      fmt::format("step {:>{}}/{}", figures.step, total.size(), total),
      fmt::format("loss {:.4f}", figures.loss),
      format_duration(figures.seconds_left) + " left",
      format_milliseconds(figures.milliseconds_per_step) + " ms/step",
      format_count(figures.tokens_per_second) + " tokens/s",
      "peak " + to_string(figures.peak),
  };
  if (figures.replayed > 0) parts.push_back(fmt::format("{} replayed", figures.replayed));
  return parts;
}

std::string fit_into(const std::vector<std::string>& parts, std::size_t columns) {
  std::string line;
  for (const std::string& part : parts) {
    const std::string longer = line.empty() ? part : line + "   " + part;
    if (longer.size() >= columns) break;
    line = longer;
  }
  return line;
}

ProgressLine::ProgressLine(std::FILE* stream) : stream_(stream), enabled_(can_redraw(stream)) {}

void ProgressLine::show(const std::vector<std::string>& parts) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || (drawn_ && now - last_ < kBetweenDrawings)) return;
  write("\r" + fit_into(parts, terminal_columns(stream_)) + "\x1b[K");
  drawn_ = true;
  last_ = now;
}

// A terminal that was closed is no reason to end the run.
void ProgressLine::write(const std::string& text) {
  std::fputs(text.c_str(), stream_);
  std::fflush(stream_);
}

void ProgressLine::clear() {
  if (!drawn_) return;
  write("\r\x1b[K");
  drawn_ = false;
}

}  // namespace reprise::app
