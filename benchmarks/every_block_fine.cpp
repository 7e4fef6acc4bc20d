// Blocks so small that operators cost more in dispatch than in arithmetic: the share that regions
// add by themselves is at its largest.
#include "benches.h"
#include "every_block.h"

namespace reprise::bench {

void every_block_fine(Session& session) {
  constexpr int kBlocks = 32;
  constexpr BlockShape kShape = {.width = 64, .heads = 4, .length = 16, .batch = 1, .dropout = 0.1};
  Race race(session, "every_block_fine", session.python());
  race.add("plain", block_step(session.device(), kBlocks, kShape, BlockStrategy::kPlain));
  race.add("non-reentrant",
           block_step(session.device(), kBlocks, kShape, BlockStrategy::kNonReentrant));
  race.add("reentrant", block_step(session.device(), kBlocks, kShape, BlockStrategy::kReentrant));
  race.run(Seconds(20));

  const auto times = [](const char* name) {
    return [name](const Round& round) { return round[name] / round["plain"]; };
  };
  race.report("non-reentrant", "×plain", times("non-reentrant"), {.at_most = 1.45});
  race.report("reentrant", "×plain", times("reentrant"));
}

}  // namespace reprise::bench
