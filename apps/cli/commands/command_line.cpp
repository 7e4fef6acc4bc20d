// From arguments to a subcommand to an exit code. An error is one line that says what is wrong and
// how to mend it.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <reprise/budget.h>
#include <reprise/error.h>
#include <reprise/reprise.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/commands/commands.h"
#include "apps/cli/io/failure.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

const CLI::App& command_of(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? program : *chosen.front();
}

std::string command_name(const CLI::App& program) {
  const CLI::App& command = command_of(program);
  return &command == &program ? "reprise" : "reprise " + command.get_name();
}

int report(const std::string& where, const std::string& what, int exit_code) {
  print_error_line(where + ": " + what);
  return exit_code;
}

// Levenshtein's distance, one row of the table at a time.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

// "; did you mean --layers?" for an option that begins or nearly reads as one of the command's;
// CLI11 2.1 has none.
std::string suggestion(const CLI::App& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(name.size() / 3, 1) + 1;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string candidate = "--" + option->get_lnames().front();
    const bool is_longer_form = name.size() > 4 && candidate.starts_with(name);
    const std::size_t distance = is_longer_form ? 0 : edit_distance(name, candidate);
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best.empty() ? "" : fmt::format("; did you mean {}?", best);
}

std::string explain(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& command = command_of(program);
  const auto unknown = command.remaining();
  if (unknown.empty()) {
    // CLI11's text for a flag with a value names neither the dashes nor what to write.
    const std::string text = error.what();
    const auto end = text.find(" was given a disallowed flag override");
    if (end == std::string::npos) return text;
    return fmt::format("--{0} takes no value: write --{0} alone", text.substr(0, end));
  }
  // The value of an unknown option is among the unknown words as well.
  const auto option =
      std::ranges::find_if(unknown, [](const auto& word) { return word.starts_with('-'); });
  if (option == unknown.end()) {
    return fmt::format("unknown {} {}", &command == &program ? "command" : "argument",
                       unknown.front());
  }
  return fmt::format("unknown option {}{}", *option, suggestion(command, *option));
}

// "2.00 GiB" of LibTorch's "Tried to allocate 2.00 GiB. GPU 0 has ..."; empty if it says nothing
// such.
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

// A result that could not be written is no success. After another error one line is enough.
int with_output(const std::string& where, int exit_code) {
  const auto reason = lost_output();
  if (!reason || exit_code != 0) return exit_code;
  return report(
      where,
      fmt::format("cannot write to standard output: {}; direct it to a place that can be written",
                  *reason),
      kFailed);
}

int print_information(const CLI::App& program, const CLI::ParseError& asked) {
  std::ostringstream text;
  const int exit_code = program.exit(asked, text, text);
  print_result(text.str());
  return exit_code;
}

int parse_and_run(CLI::App& program, const Chosen& chosen, int argc, const char* const* argv) {
  try {
    program.parse(argc, argv);
  } catch (const UsageError& error) {
    return report(command_name(program), error.what(), kBadInput);
  } catch (const CLI::ParseError& error) {
    // --help and --version arrive as errors whose code is success.
    if (error.get_exit_code() == 0) return print_information(program, error);
    const std::string where = command_name(program);
    return report(where, fmt::format("{} (see `{} --help`)", explain(program, error), where),
                  kBadInput);
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
  } catch (const BudgetError& error) {
    return report(where, error.what() + std::string(where.ends_with("train") ? kFrontierHint : ""),
                  kOverBudget);
  } catch (const Error& error) {
    return report(where, error.what(), kFailed);
  } catch (...) {
    return report(where, with_remedy(where, text_of(std::current_exception())), kFailed);
  }
}

int run_command_line(int argc, const char* const* argv) {
  CLI::App program(
      "Trains networks in less memory: activations are kept or recomputed, gradients stay the "
      "same.",
      "reprise");
  program.get_formatter()->column_width(26);
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
