// The program `reprise`: trains a small GPT under a checkpointing strategy, compares strategies,
// and tells what the machine offers.
#include "apps/reprise/commands.h"

int main(int argc, char** argv) { return reprise::app::run_command_line(argc, argv); }
