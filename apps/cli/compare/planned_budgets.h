// Lists, budgets and shares as the commands read them that work on figures and run no step.
#pragma once

#include <reprise/bytes.h>

#include <string>
#include <string_view>
#include <vector>

namespace reprise::app {

// Entries with commas between. Throws UsageError, naming the option, where one is empty.
std::vector<std::string> split_list(const char* option, const std::string& text);

// A share of the plain peak ("0.5", "50%") or bytes ("400MB"). Throws UsageError, naming --budget
// and the forms, for anything else.
Bytes read_planned_budget(std::string_view text, Bytes plain_peak);

// Of the whole, 1 if that is nothing.
double share(Bytes part, Bytes whole);

}  // namespace reprise::app
