// A policy of one's own: in selective regions, keep the results of operators that take many
// floating-point operations, and what a router decided, which must not be decided anew.
#pragma once

#include <reprise/selective.h>

namespace example {

// Keeps what took at least `flops`, and everything inside parts named "router".
inline reprise::OperatorPolicy save_expensive(double flops) {
  const reprise::OperatorPolicy expensive =
      [flops](const reprise::SelectiveCheckpointContext& call) {
        return call.flops() >= flops ? reprise::CheckpointPolicy::kPreferSave
                                     : reprise::CheckpointPolicy::kPreferRecompute;
      };
  const reprise::OperatorPolicy everything = [](const reprise::SelectiveCheckpointContext&) {
    return reprise::CheckpointPolicy::kPreferSave;
  };
  return expensive | reprise::inside("router", everything);
}

}  // namespace example
