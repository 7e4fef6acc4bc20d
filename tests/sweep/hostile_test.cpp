// Random hostile programs under random budgets: bitwise the plain outcome, or refused; the peak
// within the limit; and nothing left behind.
//
// REPRISE_HOSTILE_RUNS=2000 runs as many, REPRISE_HOSTILE_SEED=N begins with that program,
// REPRISE_HOSTILE_PARTS=a,b draws these parts alone.
#include <atomic>
#include <cstdlib>
#include <iostream>

#include "tape/value.h"
#include "tests/sweep/hostile_program.h"
#include "tests/tape/random_weights.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using testing::HostileOutcome;

std::int64_t of_environment(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

struct DrawnBudget {
  Bytes limit;
  BudgetOptions options;
  std::string told;
};

DrawnBudget draw_budget(std::mt19937_64& random, Bytes live, Bytes above) {
  const auto pick = [&](auto list) { return list[random() % list.size()]; };
  DrawnBudget drawn{GiB(64), {}, {}};
  BudgetOptions& options = drawn.options;
  options.min_bytes = pick(std::vector<Bytes>{Bytes(1), KiB(1), KiB(16)});
  options.verify = random() % 4 == 0;
  options.planning_time = std::chrono::duration<double>(0.05);
  options.plan_repeated_steps = random() % 3 == 0;
  options.heuristic = parse_heuristic(pick(std::vector<std::string>{
      "h_up", "h_up", "h_dtr", "h_eq", "h_local", "lru", "largest", "random"}));
  if (random() % 6 == 0) {
    options.store = disk_store({.folder = std::filesystem::temp_directory_path()});
  }
  if (random() % 6 == 0) options.weights = std::make_shared<testing::RandomWeights>(random());
  const double share = pick(std::vector<double>{0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4});
  if (random() % 4 == 0) {
    options.paranoid = true;
    options.store = nullptr;
  } else {
    drawn.limit = live + Bytes(static_cast<std::int64_t>(share * static_cast<double>(above.count)));
  }
  drawn.told = to_string(options.heuristic) + (options.paranoid ? " paranoid" : "") +
               (options.verify ? " verify" : "") + (options.plan_repeated_steps ? " learn" : "") +
               (options.store ? " disk" : "") + (options.weights ? " weights" : "") + " from " +
               to_string(options.min_bytes) + ", share " + std::to_string(share);
  return drawn;
}

struct HostileCounts {
  std::int64_t runs = 0, steps = 0, refused = 0, dropped = 0, replayed = 0, followed = 0;
};

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised"));
}

void run_under(std::uint64_t seed, const DrawnBudget& drawn, const HostileOutcome& plain,
               HostileCounts& counts) {
  ++counts.runs;
  MemoryBudget budget(drawn.limit, drawn.options);
  for (int step = 0; step < (drawn.options.plan_repeated_steps ? 5 : 1); ++step) {
    ++counts.steps;
    try {
      const HostileOutcome mine = testing::run_hostile(seed, &budget);
      EXPECT_TRUE(testing::same_bits(mine.tensors, plain.tensors)) << "step " << step;
    } catch (const BudgetError&) {
      ++counts.refused;
      break;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "step " << step << ": " << first_line(error);
      break;
    }
    const StepReport report = budget.report();
    counts.dropped += report.dropped;
    counts.replayed += report.replayed;
    counts.followed += report.followed;
    EXPECT_LE(report.peak, budget.limit());
    if (drawn.options.plan_repeated_steps) budget.wait_for_plan(std::chrono::seconds(1));
  }
}

TEST(HostilePrograms, HaveThePlainBitsOrAreRefused) {
  const std::int64_t runs = of_environment("REPRISE_HOSTILE_RUNS", 60);
  const auto first = static_cast<std::uint64_t>(of_environment("REPRISE_HOSTILE_SEED", 1));
  constexpr std::int64_t kBudgets = 4;
  HostileCounts counts;
  std::int64_t unsteady = 0;
  for (std::uint64_t seed = first; counts.runs < runs; ++seed) {
    HostileOutcome plain;
    try {
      plain = testing::run_hostile(seed, nullptr);
    } catch (const std::exception& error) {
      // A second derivative that LibTorch does not have.
      std::cout << "program " << seed << " does not run: " << first_line(error) << '\n';
      ++unsteady;
      continue;
    }
    const Bytes before = live_bytes();
    const PeakScope scope;
    const bool steady = static_cast<bool>(
        testing::same_bits(testing::run_hostile(seed, nullptr).tensors, plain.tensors));
    if (!steady) {
      ++unsteady;
      std::cout << "unsteady: program " << seed << ": " << plain.told << '\n';
      continue;
    }
    std::mt19937_64 random(seed * 7919);
    for (std::int64_t i = 0; i < kBudgets && counts.runs < runs; ++i) {
      const DrawnBudget drawn = draw_budget(random, before, scope.peak_above_start());
      SCOPED_TRACE("program " + std::to_string(seed) + ": " + plain.told + "; budget " +
                   std::to_string(i) + ": " + drawn.told);
      run_under(seed, drawn, plain, counts);
    }
    // What is left in autograd's queue after an error goes.
    at::ones({}).requires_grad_().backward();
    EXPECT_EQ(live_bytes(), before) << "program " << seed;
    EXPECT_EQ(tape::living_records(), 0) << "program " << seed;
    EXPECT_TRUE(testing::same_bits(testing::run_hostile(seed, nullptr).tensors, plain.tensors))
        << "program " << seed << " after its budgets";
  }
  EXPECT_LE(unsteady * 40, runs + 40);
  EXPECT_GT(counts.replayed, 10 * runs);
  std::cout << counts.runs << " runs, " << counts.steps << " steps, " << counts.refused
            << " refused, " << counts.dropped << " values dropped, " << counts.replayed
            << " operators replayed, " << counts.followed << " calls followed a plan\n";
}

// Programs on threads of their own, each with its own budget. A budget counts all threads' bytes.
TEST(HostilePrograms, OnSeveralThreadsHaveThePlainBitsOrAreRefused) {
  constexpr int kThreads = 3;
  const std::int64_t rounds = of_environment("REPRISE_HOSTILE_RUNS", 60) / 30;
  const std::uint64_t first =
      100'000 * static_cast<std::uint64_t>(of_environment("REPRISE_HOSTILE_SEED", 1));
  std::atomic<std::int64_t> right{0}, refused{0};
  for (std::int64_t round = 0; round < rounds; ++round) {
    testing::on_threads(kThreads, [&](int thread) {
      const auto seed = first + static_cast<std::uint64_t>(kThreads * round + thread);
      const HostileOutcome plain = testing::run_hostile(seed, nullptr, /*is_alone=*/false);
      std::mt19937_64 random(seed);
      for (int i = 0; i < 2; ++i) {
        DrawnBudget drawn = draw_budget(random, live_bytes(), MiB(4));
        SCOPED_TRACE("program " + std::to_string(seed) + ": " + plain.told + "; " + drawn.told);
        MemoryBudget budget(drawn.limit, drawn.options);
        try {
          const HostileOutcome mine = testing::run_hostile(seed, &budget, /*is_alone=*/false);
          const auto same = testing::same_bits(mine.tensors, plain.tensors);
          // Beside other threads a plain program need not repeat its own bits.
          if (!same &&
              testing::same_bits(testing::run_hostile(seed, nullptr, /*is_alone=*/false).tensors,
                                 plain.tensors)) {
            ADD_FAILURE() << same.message();
          }
          right += same ? 1 : 0;
        } catch (const BudgetError&) {
          ++refused;
        } catch (const std::exception& error) {
          ADD_FAILURE() << first_line(error);
        }
      }
    });
    EXPECT_EQ(tape::living_records(), 0);
  }
  EXPECT_GT(right, rounds);
  std::cout << right << " runs right, " << refused << " refused\n";
}

}  // namespace
}  // namespace reprise
