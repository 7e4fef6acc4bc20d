// From arguments to a subcommand to an exit code. Errors are one line that says what is wrong and
// how to mend it; LibTorch's are cut before their stack trace.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "apps/reprise/commands.h"
#include "apps/reprise/help.h"

namespace reprise::app {

namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string command_name(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? "reprise" : "reprise " + chosen.front()->get_name();
}

int report(const std::string& where, const std::string& what, int exit_code) {
  fmt::print(stderr, "{}: {}\n", where, first_line(what));
  return exit_code;
}

std::string explain(const CLI::App& program, const CLI::ParseError& error) {
  const auto chosen = program.get_subcommands();
  const CLI::App& command = chosen.empty() ? program : *chosen.front();
  const auto unknown = command.remaining();
  if (unknown.empty()) return first_line(error.what());
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

std::string with_remedy(const std::string& text) {
  const bool out_of_memory = text.find("allocate") != std::string::npos;
  return first_line(text) + (out_of_memory ? "; try a smaller --batch, or --strategy sqrt" : "");
}

}  // namespace

int run_and_report(const std::string& where, const Chosen& chosen) {
  try {
    return chosen();
  } catch (const UsageError& error) {
    return report(where, error.what(), kBadInput);
  } catch (const c10::Error& error) {
    return report(where, with_remedy(error.what_without_backtrace()), kFailed);
  } catch (const std::bad_alloc&) {
    return report(where, with_remedy("cannot allocate memory"), kFailed);
  } catch (const std::exception& error) {
    return report(where, error.what(), kFailed);
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
  add_info(program, chosen);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version arrive as errors whose code is success.
    if (error.get_exit_code() == 0) return program.exit(error);
    return report_parse_error(program, error);
  }
  return run_and_report(command_name(program), chosen);
}

}  // namespace reprise::app
