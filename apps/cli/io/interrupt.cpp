// A handler may only touch a sig_atomic_t, which must be a global.
#include "apps/cli/io/interrupt.h"

#include <unistd.h>

namespace reprise::app {

namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t received_signal = 0;
int open_scopes = 0;

void note(int signal) { received_signal = signal; }

void end_at_once(int signal) {
  constexpr char kText[] = "reprise: interrupted before there was a result\n";
  // If nobody can read the text, the exit code says the same.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(exit_code_of_signal(signal));
}

void answer_signals(void (*handler)(int)) {
  for (const int signal : kSignals) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action.sa_handler = handler;
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace

void end_on_signals() { answer_signals(end_at_once); }

void default_signals() { answer_signals(SIG_DFL); }

InterruptScope::InterruptScope() : is_outermost_(open_scopes++ == 0) {
  if (!is_outermost_) return;
  received_signal = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  // The first signal restores the default; interrupted system calls continue.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  --open_scopes;
  if (!is_outermost_) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int InterruptScope::signal() const { return received_signal; }

void InterruptScope::end_if_interrupted(const std::string& before_what) const {
  if (signal() != 0) throw Interrupted(signal(), "interrupted before " + before_what);
}

}  // namespace reprise::app
