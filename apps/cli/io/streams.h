// The three standard streams, where a program that is to be trusted in scripts can lose its result:
// a full disk, a closed pipe, a stream that was closed before the program began.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace reprise::app {

// To be called first. A broken pipe becomes an error of the write, and a closed stream is opened on
// nothing, so that no file that is opened later takes its number; writing to a closed stdout goes
// on failing.
void prepare_streams();

// The result of a command, to stdout. A failure is found by lost_output().
void print_result(std::string_view text);

// One line to stderr; control characters are escaped. What cannot be written is dropped, for there
// is nowhere to say so.
void print_error_line(std::string_view text);

// Writes out what stdout still holds; if anything was lost by now, the reason.
std::optional<std::string> lost_output();

}  // namespace reprise::app
