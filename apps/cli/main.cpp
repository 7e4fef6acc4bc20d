// The program `reprise`: trains a small GPT under a checkpointing strategy, compares strategies,
// and tells what the machine offers.
//
// Signals are awaited here from the very beginning: LibTorch takes longer to load than a user who
// has mistyped takes to press Ctrl-C, and before the libraries start the loader runs nothing but an
// executable's own .preinit_array.
#include <unistd.h>

#include <csignal>

#include "apps/cli/commands/commands.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/streams.h"

namespace {

// Until the command has ended, while no InterruptScope is open. There is no result by then.
void end_at_once(int signal) {
  constexpr char kText[] = "reprise: interrupted before there was a result\n";
  // Where this cannot be told, the exit code says it.
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(reprise::app::exit_code_of_signal(signal));
}

// What the program was started to ignore stays ignored.
void answer_signals(void (*handler)(int)) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action.sa_handler = handler;
    sigaction(signal, &action, nullptr);
  }
}

void await_signals() { answer_signals(end_at_once); }

// The sanitizers' own libraries must start before what they watch.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPRISE_IS_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPRISE_IS_SANITIZED
#endif
#endif
#ifndef REPRISE_IS_SANITIZED
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeTheLibraries)() = await_signals;
#endif

}  // namespace

int main(int argc, char** argv) {
  await_signals();
  reprise::app::prepare_streams();
  const int exit_code = reprise::app::run_command_line(argc, argv);
  // LibTorch takes its time to end, too, and by then there is a result.
  answer_signals(SIG_DFL);
  return exit_code;
}
