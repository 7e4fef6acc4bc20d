// The subcommands of `reprise`, one source file each. Every function adds one to the program; when
// it is chosen, parsing sets `chosen` to what runs it and gives the exit code.
//
// Exit codes: 0 done; 1 a comparison came out negative, or something failed on the way; 2 the
// command or its input was wrong; 3 `train --verify` found a gradient that is not the plain step's;
// 4 a step could not be run within its byte budget;
// 130, 143 and 129: interrupted by SIGINT, SIGTERM or SIGHUP.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

namespace reprise::app {

constexpr int kOverBudget = 4;

// For errors of budgets: the figure in them is of one allocation, and the next may need more.
constexpr const char* kFrontierHint =
    " (`reprise frontier` with the same model finds the least that a step needs)";

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

// Runs what was chosen; an error becomes one line on stderr, "WHERE: what, and how to mend it", and
// an exit code.
int run_and_report(const std::string& where, const Chosen& chosen);

// The whole program.
int run_command_line(int argc, const char* const* argv);

}  // namespace reprise::app
