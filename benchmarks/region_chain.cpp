// What a region costs per tensor that is saved in it: one region of many small operators, less the
// plain chain, less one more forward of it.
#include <reprise/checkpoint.h>

#include "benches.h"
#include "chain.h"

namespace reprise::bench {

void region_chain(Session& session) {
  Race race(session, "region_chain", session.python());
  race.add("plain", backward_of(session.device(), sin_chain));
  race.add("forward", forward_of(session.device(), sin_chain));
  race.add("region", backward_of(session.device(),
                                 [](const at::Tensor& x) { return checkpoint(sin_chain, x); }));
  race.run(Seconds(20));

  const Formula over = [](const Round& round) {
    return 1e6 * (round["region"] - round["plain"] - round["forward"]) / kChain;
  };
  race.report("per saved tensor", "µs", over, {.at_most = 0.6});
}

}  // namespace reprise::bench
