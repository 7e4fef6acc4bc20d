// checkpoint_sequential() at its finest: every operator of a chain is a segment, so that what a
// segment costs is all that is seen.
#include <reprise/checkpoint_sequential.h>

#include "benches.h"
#include "chain.h"

namespace reprise::bench {

void sequential_fine(Session& session) {
  Race race(session, "sequential_fine", session.python());
  race.add("plain", backward_of(sin_chain));
  const std::vector<TensorFunction> functions(kChain, sin_of);
  race.add("segments", backward_of([functions](const at::Tensor& x) {
             return checkpoint_sequential(functions, kChain, x);
           }));
  race.run(Seconds(20));

  const Formula times = [](const Round& round) { return round["segments"] / round["plain"]; };
  race.report("100 segments", "×plain", times, {.at_most = 1.6});
}

}  // namespace reprise::bench
