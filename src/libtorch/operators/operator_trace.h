// Which operators ran: the evidence in the text of a DeterminismError.
//
// A trace lists every operator call of its thread, composites with their parts indented below them:
//   aten::linear(Float[8, 16], Float[4, 16], None) -> Float[8, 4]
//     aten::t(Float[4, 16]) -> Float[16, 4]
//     aten::mm(Float[8, 16], Float[16, 4]) -> Float[8, 4]
// A call that has no result, or was left by an exception, has no arrow. Both scopes here work
// through LibTorch's own observers (at::RecordFunction), as its profiler does, and cost nothing
// while none is open.
#pragma once

#include <ATen/record_function.h>

#include <cstddef>
#include <string>
#include <vector>

namespace reprise::libtorch {

// The name of the innermost operator that runs on this thread, such as "aten::mm"; "unknown"
// outside operators and outside CurrentOperatorScopes. The pointer is valid until that operator
// returns.
const char* current_operator();

// While one is open, current_operator() knows the operators that start. May nest; belongs to the
// thread that opened it.
class CurrentOperatorScope {
 public:
  CurrentOperatorScope();
  ~CurrentOperatorScope();
  CurrentOperatorScope(const CurrentOperatorScope&) = delete;
  CurrentOperatorScope& operator=(const CurrentOperatorScope&) = delete;

 private:
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

// Records while it is alive, on the thread that made it. Traces may nest; each sees all calls. Also
// does what a CurrentOperatorScope does. For debugging: a call costs some microseconds.
class OperatorTrace {
 public:
  OperatorTrace();
  ~OperatorTrace();
  OperatorTrace(const OperatorTrace&) = delete;
  OperatorTrace& operator=(const OperatorTrace&) = delete;

  // One line a call, in the order in which they started.
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  struct Observer;
  CurrentOperatorScope names_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  std::vector<std::string> lines_;
  std::size_t depth_ = 0;
};

}  // namespace reprise::libtorch
