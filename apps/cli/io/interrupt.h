// Ctrl-C as a request: the running step is finished and saved, then the program ends as it should.
#pragma once

#include <array>
#include <csignal>
#include <stdexcept>
#include <string>

namespace reprise::app {

// While the scope lives, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process; those
// that it was started to ignore, as by nohup, stay ignored. A second one ends it at once, in case
// that finishing the step takes longer than the user will wait. A scope inside of another shares
// what that one has noted.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // 0, or the number of the signal that came.
  int signal() const;
  // Throws Interrupted if one came: for a command that has no result yet.
  void end_if_interrupted(const std::string& before_what) const;

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  bool is_outermost_;
  std::array<struct sigaction, kSignals.size()> before_;
};

// Ends a command that a signal asked to end; the text is what stderr is told.
class Interrupted : public std::runtime_error {
 public:
  Interrupted(int signal, const std::string& text) : std::runtime_error(text), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// What the shell is told about a process that a signal has ended: 130 for Ctrl-C.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace reprise::app
