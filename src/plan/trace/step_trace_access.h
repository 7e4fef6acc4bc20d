// The way from the public StepTrace to the events it holds and back. plan/simulate implements it;
// planners and estimates use it.
#pragma once

#include <reprise/step_trace.h>

#include "plan/trace/trace.h"

namespace reprise::detail {

struct StepTraceAccess {
  static const plan::Trace& trace_of(const StepTrace& trace);
  static StepTrace step_trace(plan::Trace trace);
};

}  // namespace reprise::detail
