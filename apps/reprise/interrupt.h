// Ctrl-C as a request: the running step is finished and saved, then the program ends as it should.
#pragma once

#include <array>
#include <csignal>

namespace reprise::app {

// While the scope lives, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process; those
// that it was started to ignore, as by nohup, stay ignored. A second one ends it at once, in case
// that finishing the step takes longer than the user will wait. One scope at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // 0, or the number of the signal that came.
  int signal() const;

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_;
};

// What the shell is told about a process that a signal has ended: 130 for Ctrl-C.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace reprise::app
