// How a command ends: its exit codes, and the text of an error in one line, without LibTorch's
// stack trace.
//
// | code          | means                                                       |
// |---------------|-------------------------------------------------------------|
// | 0             | done                                                        |
// | 1             | a comparison was negative, or something failed              |
// | 2             | the command or its input was wrong                          |
// | 3             | `train --verify` found a gradient that differs              |
// | 4             | a step does not fit in its byte budget                      |
// | 130, 143, 129 | SIGINT, SIGTERM or SIGHUP ended it (interrupt.h)            |
#pragma once

#include <exception>
#include <string>

namespace reprise::app {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;
constexpr int kDiffers = 3;
constexpr int kOverBudget = 4;

// Stands behind errors of budgets, whose bytes are those of one allocation: the next one may need
// more.
constexpr const char* kFrontierHint =
    " (`reprise frontier` with the same model finds the least that a step needs)";

std::string first_line(const std::string& text);
std::string text_of(const std::exception_ptr& error);

}  // namespace reprise::app
