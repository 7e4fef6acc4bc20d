// Ctrl-C as a request: the running step is finished and saved, and then the program ends.
#pragma once

#include <array>
#include <csignal>
#include <stdexcept>
#include <string>

namespace reprise::app {

// Outside of any scope a signal ends the process at once, with a line that says so and the code of
// the signal. A signal that was ignored when the process began, as by nohup, stays ignored.
void end_on_signals();
// Gives signals their default effect again.
void default_signals();

// While the scope lives, SIGINT, SIGTERM and SIGHUP are noted and do not end the process. A second
// signal ends it at once, for a user who will not wait until the step is finished. An inner scope
// shares the signal that the outer one has noted.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // 0, or the number of the signal that came.
  int signal() const;
  // Throws Interrupted if a signal came, in a command that has no result yet.
  void end_if_interrupted(const std::string& before_what) const;

 private:
  bool is_outermost_;
  std::array<struct sigaction, 3> before_;
};

// Ends a command at the request of a signal; the text goes to stderr.
class Interrupted : public std::runtime_error {
 public:
  Interrupted(int signal, const std::string& text) : std::runtime_error(text), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// The exit code of a process that a signal has ended: 130 for Ctrl-C.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace reprise::app
