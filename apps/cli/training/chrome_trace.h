// One step as a trace that chrome://tracing and ui.perfetto.dev show: operators and replays as
// bars, drops as marks, the bytes alive as a curve.
#pragma once

#include <reprise/budget_extensions.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace reprise::app {

class ChromeTrace final : public BudgetObserver {
 public:
  // Writes to `file`, which must live until close(); `path` is its name for texts.
  ChromeTrace(std::FILE* file, std::string path) : path_(std::move(path)), file_(file) {}

  void recorded(const Operator& done) noexcept override;
  void dropped(const Value& value) noexcept override;
  void restored(const Value& value) noexcept override;
  void replayed(const Replay& done) noexcept override;

  // Writes what was told, under a bar with this name. Throws Error, naming the file and the reason,
  // if it cannot.
  void close(const std::string& step);

 private:
  struct Event {
    enum class Kind { kOperator, kReplay, kDrop, kReturn };
    Kind kind;
    std::string name;
    double end;      // seconds since the beginning
    double seconds;  // 0 for what happens in a moment
    Bytes bytes;     // dropped or brought back
    Bytes live;
    std::size_t thread;
  };
  // `at`: when the device had done it; on the CPU that is now.
  void add(Event::Kind kind, std::string_view name, double seconds, Bytes bytes, Bytes live,
           std::optional<Seconds> at) noexcept;
  void write(const std::string& text);
  void write(const Event& event);

  std::string path_;
  std::FILE* file_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Event> events_;
  std::vector<std::thread::id> threads_;
  std::string lost_;  // the reason why something was
};

}  // namespace reprise::app
