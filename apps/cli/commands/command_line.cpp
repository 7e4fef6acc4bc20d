// From arguments to a subcommand to an exit code. Errors are one line that says what is wrong and
// how to mend it; LibTorch's are cut before their stack trace.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <reprise/budget.h>
#include <reprise/error.h>
#include <reprise/reprise.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "apps/cli/commands/arguments.h"
#include "apps/cli/commands/commands.h"
#include "apps/cli/commands/help.h"
#include "apps/cli/io/failure.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

std::string command_name(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? "reprise" : "reprise " + chosen.front()->get_name();
}

int report(const std::string& where, const std::string& what, int exit_code) {
  print_error_line(where + ": " + what);
  return exit_code;
}

std::string explain(const CLI::App& program, const CLI::ParseError& error) {
  const auto chosen = program.get_subcommands();
  const CLI::App& command = chosen.empty() ? program : *chosen.front();
  const auto unknown = command.remaining();
  if (unknown.empty()) return error.what();
  // The value of an unknown option is among the unknown as well.
  const auto option =
      std::ranges::find_if(unknown, [](const auto& w) { return w.starts_with('-'); });
  if (option == unknown.end()) {
    return fmt::format("unknown {} {}", chosen.empty() ? "command" : "argument", unknown.front());
  }
  const std::string nearest = nearest_option(command, *option);
  return fmt::format("unknown option {}{}", *option,
                     nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

int report_parse_error(const CLI::App& program, const CLI::ParseError& error) {
  const std::string where = command_name(program);
  return report(where, fmt::format("{} (see `{} --help`)", explain(program, error), where),
                kBadInput);
}

// "2.00 GiB" of LibTorch's "Tried to allocate 2.00 GiB. GPU 0 has ..."; empty if it does not say.
std::string tried_to_allocate(const std::string& text) {
  constexpr std::string_view kBefore = "ried to allocate ";
  const auto found = text.find(kBefore);
  if (found == std::string::npos) return "";
  const auto begin = found + kBefore.size();
  return text.substr(begin, text.find(". ", begin) - begin);
}

std::string with_remedy(const std::string& where, const std::string& text) {
  if (text.find("allocate") == std::string::npos) return text;
  const std::string tried = tried_to_allocate(text);
  return fmt::format("{}; choose a smaller --batch, --context or --width{}",
                     tried.empty() ? text : "out of memory: tried to allocate " + tried,
                     where.ends_with("train") ? ", or --strategy sqrt" : "");
}

std::string with_budget_remedy(const std::string& where, const std::string& text) {
  return where.ends_with("train") ? text + kFrontierHint : text;
}

int report_lost_output(const std::string& where, const std::string& reason) {
  return report(where,
                fmt::format("cannot write to standard output: {}; direct it to a place that can "
                            "be written",
                            reason),
                kFailed);
}

// A result that nobody got is no success; after another error one line is enough.
int with_output(const std::string& where, int exit_code) {
  const auto reason = lost_output();
  return reason && exit_code == 0 ? report_lost_output(where, *reason) : exit_code;
}

int print_information(const CLI::App& program, const CLI::ParseError& asked) {
  std::ostringstream text;
  const int exit_code = program.exit(asked, text, text);
  print_result(text.str());
  return exit_code;
}

int parse_and_run(CLI::App& program, const Chosen& chosen, int argc, const char* const* argv) {
  try {
    auto words = normalised_arguments(program, argc, argv);
    std::ranges::reverse(words);
    program.parse(std::move(words));
  } catch (const UsageError& error) {
    return report(command_name(program), error.what(), kBadInput);
  } catch (const CLI::ParseError& error) {
    // --help and --version arrive as errors whose code is success.
    if (error.get_exit_code() == 0) return print_information(program, error);
    return report_parse_error(program, error);
  }
  return run_and_report(command_name(program), chosen);
}

}  // namespace

int run_and_report(const std::string& where, const Chosen& chosen) {
  try {
    return chosen();
  } catch (const Interrupted& end) {
    return report(where, end.what(), exit_code_of_signal(end.signal()));
  } catch (const UsageError& error) {
    return report(where, error.what(), kBadInput);
  } catch (const c10::Error& error) {
    return report(where, with_remedy(where, first_line(error.what_without_backtrace())), kFailed);
  } catch (const std::bad_alloc&) {
    return report(where, with_remedy(where, "cannot allocate memory"), kFailed);
  } catch (const BudgetError& error) {
    return report(where, with_budget_remedy(where, error.what()), kOverBudget);
  } catch (const Error& error) {
    return report(where, error.what(), kFailed);
  } catch (const std::exception& error) {
    return report(where, first_line(error.what()), kFailed);
  }
}

int run_command_line(int argc, const char* const* argv) {
  CLI::App program(
      "Trains networks in less memory: activations are kept or recomputed, gradients stay the "
      "same.",
      "reprise");
  program.formatter(std::make_shared<HelpFormatter>());
  program.set_help_flag("-h,--help", "print this text");
  program.set_version_flag("--version",
                           fmt::format("reprise {} (LibTorch {})", version(), libtorch_version()),
                           "print the versions of reprise and LibTorch");
  program.require_subcommand(1);
  Chosen chosen;
  add_train(program, chosen);
  add_compare(program, chosen);
  add_frontier(program, chosen);
  add_plan(program, chosen);
  add_simulate(program, chosen);
  add_estimate(program, chosen);
  add_advise(program, chosen);
  add_calibrate(program, chosen);
  add_info(program, chosen);
  const int exit_code = parse_and_run(program, chosen, argc, argv);
  return with_output(command_name(program), exit_code);
}

}  // namespace reprise::app
