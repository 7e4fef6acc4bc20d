// checkpoint_sequential() at its finest: every operator of a chain is a segment, so that what a
// segment costs is all that is seen.
#include <reprise/sequential.h>

#include <vector>

#include "benches.h"
#include "chain.h"

namespace reprise::bench {
namespace {

Step step_in(const Session& session, std::int64_t segments) {
  const std::vector<TensorFunction> functions(kChain, sin_of);
  return backward_of(session.device(), [functions, segments](const at::Tensor& x) {
    return checkpoint_sequential(functions, segments, x);
  });
}

// How much of that is the fineness: the same operators in fewer segments.
void report_coarse(Session& session) {
  constexpr std::int64_t kSegments = 10;
  Race race(session, "sequential_fine", nullptr);
  race.add("plain", backward_of(session.device(), sin_chain));
  race.add("segments", step_in(session, kSegments));
  race.run(Seconds(10));
  race.report("10 segments", "×plain",
              [](const Round& round) { return round["segments"] / round["plain"]; });
}

}  // namespace

void sequential_fine(Session& session) {
  Race race(session, "sequential_fine", session.python());
  race.add("plain", backward_of(session.device(), sin_chain));
  race.add("segments", step_in(session, kChain));
  race.run(Seconds(20));

  const Formula times = [](const Round& round) { return round["segments"] / round["plain"]; };
  race.report("100 segments", "×plain", times, {.at_most = 1.6});
  report_coarse(session);
}

}  // namespace reprise::bench
