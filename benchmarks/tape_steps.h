// Steps under a byte budget, for the benchmarks of the tape.
#pragma once

#include <reprise/bytes.h>

#include "benchmarks/support/race.h"

namespace reprise::bench {

// `step` under a budget of so much above what is live on the device when it first begins.
Step under_budget(c10::Device device, Step step, Bytes above);

// A chain of small operators, forward and backward: "plain"; "seen", by an interceptor that lets
// everything pass; "recorded", by a budget without pressure; and the operators in it.
NamedSteps tape_steps(c10::Device device);
double operators_in_tape_steps();

}  // namespace reprise::bench
