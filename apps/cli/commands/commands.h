// The subcommands of `reprise`, one source file each, with its options beside it. Every function
// adds a command to the program. If the command is chosen, parsing sets `chosen` to the function
// that runs it and gives the exit code (failure.h).
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace reprise::app {

using Chosen = std::function<int()>;

void add_train(CLI::App& program, Chosen& chosen);
void add_compare(CLI::App& program, Chosen& chosen);
void add_frontier(CLI::App& program, Chosen& chosen);
void add_plan(CLI::App& program, Chosen& chosen);
void add_simulate(CLI::App& program, Chosen& chosen);
void add_estimate(CLI::App& program, Chosen& chosen);
void add_advise(CLI::App& program, Chosen& chosen);
void add_calibrate(CLI::App& program, Chosen& chosen);
void add_info(CLI::App& program, Chosen& chosen);

// Adds a command whose options are an `Options`. bind(command, options) makes the command fill
// them, and `run` gets them.
template <class Options, class Run>
void add_command(CLI::App& program, Chosen& chosen, const char* name, const char* help, Run run) {
  CLI::App* const command = program.add_subcommand(name, help);
  const auto options = std::make_shared<Options>();
  bind(*command, *options);
  command->callback([options, run, &chosen] { chosen = [options, run] { return run(*options); }; });
}

// Runs the chosen command. An error becomes one line on stderr, "WHERE: what, and how to mend it",
// and an exit code.
int run_and_report(const std::string& where, const Chosen& chosen);

// The whole program.
int run_command_line(int argc, const char* const* argv);

}  // namespace reprise::app
