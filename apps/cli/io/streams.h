// The standard streams. A script must not take a lost result for success. So a full disk, a closed
// pipe and a stream that was closed before the program began are all noticed.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace reprise::app {

// Call it first. A broken pipe becomes an error of the write. A closed stream is opened on
// /dev/null, so that no later file takes its number; writes to a closed stdout still fail.
void prepare_streams();

// The result of a command, to stdout. A failure is found by lost_output().
void print_result(std::string_view text);
// The same for an object of JSON. What is no UTF-8, such as a path, is replaced.
void print_object(const nlohmann::json& object);

// Writes one line to stderr, with control characters escaped. A failure is ignored, because there
// is no other place to report it.
void print_error_line(std::string_view text);

// Flushes stdout. Returns the reason if anything was lost by now.
std::optional<std::string> lost_output();

}  // namespace reprise::app
