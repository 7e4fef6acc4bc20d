// Regions whose matrix products are kept: blocks so small that only what the policy costs is seen,
// and blocks of a real size, where both time and peak count.
#include "benches.h"
#include "every_block.h"

namespace reprise::bench {
namespace {

const Formula kTimes = [](const Round& round) { return round["matmuls-kept"] / round["plain"]; };

}  // namespace

void selective_fine(Session& session) {
  constexpr int kBlocks = 32;
  constexpr BlockShape kShape = {.width = 64, .heads = 4, .length = 16, .batch = 1, .dropout = 0.1};
  Race race(session, "selective_fine", session.python());
  race.add("plain", block_step(session.device(), kBlocks, kShape, BlockStrategy::kPlain));
  race.add("matmuls-kept",
           block_step(session.device(), kBlocks, kShape, BlockStrategy::kMatmulsKept));
  race.run(Seconds(20));
  race.report("matmuls kept", "×plain", kTimes, {.at_most = 1.5});
}

void selective_coarse(Session& session) {
  constexpr int kBlocks = 8;
  constexpr BlockShape kShape = {
      .width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};
  const Step plain = block_step(session.device(), kBlocks, kShape, BlockStrategy::kPlain);
  const Step kept = block_step(session.device(), kBlocks, kShape, BlockStrategy::kMatmulsKept);
  report_peak(session, "selective_coarse", "plain", plain, {});
  report_peak(session, "selective_coarse", "matmuls-kept", kept, {.above_peer_at_most = 0});

  Race race(session, "selective_coarse", session.python());
  race.add("plain", plain);
  race.add("matmuls-kept", kept);
  race.run(Seconds(100));
  race.report("matmuls kept", "×plain", kTimes, {.at_most = 1.12});
}

}  // namespace reprise::bench
