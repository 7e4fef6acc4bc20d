// The words of the command line, put into a form that CLI11 reads as they were meant: it takes an
// empty value for none, a flag's value for an order, and a word in brackets for a list.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace reprise::app {

// The words after the program's name. `--name=` becomes the option and an empty value, and a list
// option before several words is repeated before each. Throws UsageError for a flag with a value.
std::vector<std::string> normalised_arguments(const CLI::App& program, int argc,
                                              const char* const* argv);

}  // namespace reprise::app
