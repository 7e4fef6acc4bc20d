// What one region costs beyond what it cannot avoid: checkpoint() of one small operator, forward
// and backward, less the plain operator, less one more forward of it.
#include <reprise/checkpoint.h>

#include "benches.h"
#include "chain.h"

namespace reprise::bench {
namespace {

Step region(const Session& session, bool reentrant, bool state) {
  CheckpointOptions options;
  options.reentrant = reentrant;
  options.preserve_rng_state = state;
  options.preserve_ambient_state = state;
  return backward_of(session.device(),
                     [options](const at::Tensor& x) { return checkpoint(options, sin_of, x); });
}

}  // namespace

void region_overhead(Session& session) {
  Race race(session, "region_overhead", session.python());
  race.add("plain", backward_of(session.device(), sin_of));
  race.add("forward", forward_of(session.device(), sin_of));
  race.add("non-reentrant", region(session, /*reentrant=*/false, /*state=*/false));
  race.add("non-reentrant,state", region(session, /*reentrant=*/false, /*state=*/true));
  race.add("reentrant", region(session, /*reentrant=*/true, /*state=*/false));
  race.add("reentrant,state", region(session, /*reentrant=*/true, /*state=*/true));
  race.run(Seconds(20));

  const auto report = [&](const char* name, const Bar& bar) {
    const Formula over = [name](const Round& round) {
      return 1e6 * (round[name] - round["plain"] - round["forward"]);
    };
    race.report(name, "µs", over, bar);
  };
  report("non-reentrant", {.at_most = 1.5, .ratio_at_most = 1.0 / 50});
  report("non-reentrant,state", {.at_most = 2.5, .ratio_at_most = 1.0 / 50});
  report("reentrant", {.at_most = 14, .ratio_at_most = 1.0 / 7});
  report("reentrant,state", {.at_most = 14, .ratio_at_most = 1.0 / 7});
}

}  // namespace reprise::bench
