// Blocks of a real size: recomputation itself is what is paid, in exchange for memory. Both the
// time and the peak of a step are compared.
#include "benches.h"
#include "every_block.h"

namespace reprise::bench {
namespace {

constexpr int kBlocks = 8;
constexpr BlockShape kShape = {.width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};

}  // namespace

void every_block_coarse(Session& session) {
  const Step plain = block_step(session.device(), kBlocks, kShape, BlockStrategy::kPlain);
  const Step regions = block_step(session.device(), kBlocks, kShape, BlockStrategy::kNonReentrant);
  report_peak(session, "every_block_coarse", "plain", plain, {});
  report_peak(session, "every_block_coarse", "non-reentrant", regions, {.at_most = 54});

  Race race(session, "every_block_coarse", session.python());
  race.add("plain", plain);
  race.add("non-reentrant", regions);
  race.run(Seconds(100));
  const Formula times = [](const Round& round) { return round["non-reentrant"] / round["plain"]; };
  race.report("non-reentrant", "×plain", times, {.above_peer_at_most = 0.03});
}

}  // namespace reprise::bench
