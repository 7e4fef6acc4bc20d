// What an error says, in one line, without LibTorch's stack trace.
#pragma once

#include <exception>
#include <string>

namespace reprise::app {

std::string first_line(const std::string& text);
std::string text_of(const std::exception_ptr& error);

}  // namespace reprise::app
