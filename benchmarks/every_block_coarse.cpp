// Blocks of a real size: recomputation itself is what is paid, in exchange for memory. Both the
// time and the peak of a step are compared.
#include <reprise/memory.h>

#include "benches.h"
#include "every_block.h"

namespace reprise::bench {
namespace {

constexpr int kBlocks = 8;
constexpr BlockShape kShape = {.width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};

double peak_megabytes(const Step& step) {
  step();
  const PeakScope scope;
  step();
  return scope.peak_above_start().megabytes();
}

void report_peak(Session& session, const std::string& name, const Step& step, const Bar& bar) {
  PeerProcess* peer = session.python_with_meter();
  Figure figure = {.bench = "every_block_coarse",
                   .name = "peak, " + name,
                   .ours = peak_megabytes(step),
                   .peer = {},
                   .unit = "MB",
                   .runs = 1,
                   .spread = 0,
                   .bar = bar};
  if (peer != nullptr) figure.peer = peer->peak("every_block_coarse/" + name) / 1e6;
  session.report(std::move(figure));
}

}  // namespace

void every_block_coarse(Session& session) {
  const Step plain = block_step(kBlocks, kShape, BlockStrategy::kPlain);
  const Step regions = block_step(kBlocks, kShape, BlockStrategy::kNonReentrant);
  report_peak(session, "plain", plain, {});
  report_peak(session, "non-reentrant", regions, {.at_most = 54});

  Race race(session, "every_block_coarse", session.python());
  race.add("plain", plain);
  race.add("non-reentrant", regions);
  race.run(Seconds(100));
  const Formula times = [](const Round& round) { return round["non-reentrant"] / round["plain"]; };
  race.report("non-reentrant", "×plain", times, {.above_peer_at_most = 0.03});
}

}  // namespace reprise::bench
