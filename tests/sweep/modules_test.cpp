// Every module of torch::nn, in training and in evaluation, small and large: results, buffers and
// gradients are bitwise the plain ones where every value is dropped after each operator.
#include <iostream>

#include "tests/sweep/module_cases.h"
#include "tests/sweep/sweep.h"

namespace reprise {
namespace {

using testing::MadeModule;
using testing::ModuleCase;
using testing::Swept;
using testing::Tensors;

Swept swept(const ModuleCase& what, std::int64_t n, bool training) {
  const MadeModule made = what.make(n);
  made.module->train(training);
  return {made.inputs, made.forward, made.module->buffers(), made.module->parameters()};
}

TEST(ModuleSweep, EveryModuleHasThePlainBits) {
  std::vector<ModuleCase> all = testing::layer_modules();
  for (ModuleCase& more : testing::sequence_and_loss_modules()) all.push_back(std::move(more));
  testing::SweepCounts counts;
  for (const ModuleCase& what : all) {
    for (const bool training : {true, false}) {
      // Results of less than 16 KiB, and of more.
      for (const std::int64_t n : {2, 64}) {
        if (n > 2 && !training && !testing::is_long_sweep()) continue;
        const auto make = [&] { return swept(what, n, training); };
        const Tensors plain = testing::swept_outcome(make, nullptr);
        for (const Bytes min_bytes : {Bytes(1), KiB(16)}) {
          if (n == 2 && min_bytes != Bytes(1)) continue;
          EXPECT_TRUE(testing::is_right_when_dropped(make, plain, min_bytes, counts))
              << what.name << (training ? " in training" : "") << " of " << n << " from "
              << to_string(min_bytes) << " on";
        }
      }
    }
  }
  EXPECT_GE(all.size(), 120U);
  EXPECT_GT(counts.replayed, 5'000);
  std::cout << all.size() << " modules, " << counts.cases << " cases, " << counts.dropped
            << " values dropped, " << counts.replayed << " operators replayed\n";
}

}  // namespace
}  // namespace reprise
