// A handler may only touch a sig_atomic_t, and that must be a global.
#include "apps/cli/io/interrupt.h"

namespace reprise::app {

namespace {

volatile std::sig_atomic_t received_signal = 0;
int open_scopes = 0;

void note(int signal) { received_signal = signal; }

}  // namespace

InterruptScope::InterruptScope() : is_outermost_(open_scopes++ == 0) {
  if (!is_outermost_) return;
  received_signal = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  // Back to the default with the first signal; interrupted system calls go on.
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
