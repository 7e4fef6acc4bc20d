// A step as one JSON document, for steps that no program ran: written by hand or by other tools.
// docs/planning.md has the schema. Beside the line log of trace.h, which a running step writes.
#pragma once

#include <string>
#include <string_view>

#include "plan/trace/trace.h"

namespace reprise::plan {

// Whether the text, by its beginning, is meant to be one.
bool is_step_json(std::string_view text);

// Throws UsageError "ORIGIN:LINE: field: reason".
Trace parse_step_json(std::string_view text, const std::string& origin);

// Reading that gives the same step, but that constants are there from its beginning.
std::string step_json(const Trace& trace);

}  // namespace reprise::plan
