// How the program explains itself: the layout of --help, and the nearest option to a mistyped one.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Formatter.hpp>
#include <string>

namespace reprise::app {

// CLI11's layout with one empty line between groups.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_description(const CLI::App* app) const override;
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

// The option of `command` that is spelled most like `word`, if it is like it at all; else empty.
std::string nearest_option(const CLI::App& command, const std::string& word);

}  // namespace reprise::app
