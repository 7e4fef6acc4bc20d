// The program `reprise`: trains networks under checkpointing strategies and byte budgets, compares,
// plans and estimates steps, and tells what the machine offers.
#include "apps/cli/commands/commands.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/streams.h"

int main(int argc, char** argv) {
  reprise::app::end_on_signals();
  reprise::app::prepare_streams();
  const int exit_code = reprise::app::run_command_line(argc, argv);
  // LibTorch needs some time to end, and the result is there.
  reprise::app::default_signals();
  return exit_code;
}
