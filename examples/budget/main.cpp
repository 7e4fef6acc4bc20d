// A network that knows nothing of reprise (networks.h), trained twice: plainly, and then in half
// the bytes. Prints the losses of both side by side, which are the same bits, and the peaks.
//
//   budget gan 128 8          # images a step, steps
//   budget transformer 256 8  # length of a sequence, steps
#include <reprise/budget.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "networks.h"

namespace {

struct Run {
  std::vector<float> losses;
  reprise::Bytes live;  // before the last step: weights and what optimizers keep
  reprise::Bytes peak;  // of all steps
};

std::unique_ptr<Trainer> make_trainer(const std::string& network, int64_t size) {
  if (network == "gan") return std::make_unique<GanTrainer>(size);
  return std::make_unique<TransformerTrainer>(size);
}

// Plainly without a budget. With one, two lines are added to the loop, and none to the network.
Run train(const std::string& network, int64_t size, int steps, reprise::MemoryBudget* budget) {
  torch::manual_seed(1);
  const std::unique_ptr<Trainer> trainer = make_trainer(network, size);
  Run run;
  for (int i = 0; i < steps; ++i) {
    const reprise::PeakScope memory;
    std::optional<reprise::MemoryBudget::Step> managed;
    if (budget) managed.emplace(budget->step());
    run.losses.push_back(trainer->step());
    if (managed) managed->finish();
    run.live = memory.live_at_start();
    run.peak = std::max(run.peak, memory.peak());
  }
  return run;
}

int compare(const std::string& network, int64_t size, int steps) {
  const Run plain = train(network, size, steps, nullptr);
  // Half of what a step needs above the weights and the optimizers' state, which have to stay.
  const reprise::Bytes half((plain.peak - plain.live).count / 2);
  reprise::MemoryBudget budget(plain.live + half);
  const Run under = train(network, size, steps, &budget);

  std::printf("step   plain loss    under the budget\n");
  bool are_same = true;
  for (int i = 0; i < steps; ++i) {
    const bool is_same = std::memcmp(&plain.losses[i], &under.losses[i], sizeof(float)) == 0;
    std::printf("%4d   %-11.8g   %-11.8g   %s\n", i + 1, plain.losses[i], under.losses[i],
                is_same ? "same bits" : "DIFFERENT");
    are_same = are_same && is_same;
  }
  const reprise::StepReport last = budget.report();
  std::printf("plain peak %s, of which %s are live before a step\n", to_string(plain.peak).c_str(),
              to_string(plain.live).c_str());
  std::printf("budget %s, half of what comes on top; peak under it %s\n",
              to_string(budget.limit()).c_str(), to_string(under.peak).c_str());
  std::printf("the last step dropped %lld values (%s) and ran %lld of its %lld operators again\n",
              static_cast<long long>(last.dropped), to_string(last.dropped_bytes).c_str(),
              static_cast<long long>(last.replayed), static_cast<long long>(last.operators));
  return are_same && under.peak <= budget.limit() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string network = argc > 1 ? argv[1] : "gan";
  if (network != "gan" && network != "transformer") {
    std::fprintf(stderr, "budget: the network is '%s'; give gan or transformer\n", network.c_str());
    return 2;
  }
  try {
    const int64_t size = argc > 2 ? std::stoll(argv[2]) : network == "gan" ? 128 : 256;
    return compare(network, size, argc > 3 ? std::stoi(argv[3]) : 8);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "budget: %s\n", error.what());
    return 1;
  }
}
