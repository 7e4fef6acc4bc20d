// The program `reprise`: trains a small GPT under a checkpointing strategy, compares strategies,
// and tells what the machine offers.
#include "apps/reprise/commands.h"
#include "apps/reprise/streams.h"

int main(int argc, char** argv) {
  reprise::app::prepare_streams();
  return reprise::app::run_command_line(argc, argv);
}
