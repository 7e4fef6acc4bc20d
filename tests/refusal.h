// What a call refuses with, for tests of error texts.
#pragma once

#include <reprise/error.h>

#include <string>

namespace reprise {

// The text of the Expected that `call` throws; empty if it throws nothing.
template <class Expected = UsageError, class F>
std::string refusal_of(F&& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  return "";
}

}  // namespace reprise
