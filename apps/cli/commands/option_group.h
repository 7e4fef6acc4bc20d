// Options as the help text groups them, each with its type, its bounds and its default in one line.
// The readers are reprise's own (numbers.h): CLI11's accept octal numbers, wrap around on overflow,
// and split a path in brackets as a list.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/io/numbers.h"

namespace reprise::app {

// The targets' present values are the defaults that the help shows. Of an option given twice the
// last counts, so that a script's options can be overridden; lists grow. What cannot be read throws
// UsageError while the command line is parsed.
class OptionGroup {
 public:
  OptionGroup(CLI::App& command, const char* name) : command_(command), name_(name) {}

  void text(const char* option, const char* type, std::string& target, const char* help);
  void text(const char* option, const char* type, std::optional<std::string>& target,
            const char* help);
  void whole(const char* option, std::int64_t& target, WholeRange range, const char* help);
  void whole(const char* option, int& target, WholeRange range, const char* help);
  void whole(const char* option, std::optional<std::int64_t>& target, WholeRange range,
             const char* help);
  void real(const char* option, double& target, RealRange range, const char* help);
  void real(const char* option, std::optional<double>& target, RealRange range, const char* help);
  void path(const char* option, const char* type, std::string& target, const char* help);
  // One path each time the option is given, taken as it is.
  void paths(const char* option, std::vector<std::string>& target, const char* help);
  // Names with commas between them; spaces around them do not count.
  void names(const char* option, std::vector<std::string>& target, const std::string& shown_default,
             const char* help);
  void flag(const char* option, bool& target, const char* help);

 private:
  using Reader = std::function<void(const std::string& text)>;
  CLI::Option* add(const char* option, const char* type, const char* help, Reader read);
  CLI::Option* add_list(const char* option, const char* type, const char* help,
                        std::function<void(const std::vector<std::string>&)> read);

  CLI::App& command_;
  const char* name_;
};

}  // namespace reprise::app
