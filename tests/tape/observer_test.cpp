// What an observer is told is what the step did: every operator once, every drop, every return, and
// sizes that add up.
#include <reprise/budget_extensions.h>
#include <reprise/error.h>

#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using testing::gradients_under;
using testing::plain_gradients;
using testing::same_bits;
using testing::Tensors;

struct Log : BudgetObserver {
  void recorded(const Operator& done) noexcept override {
    names.emplace_back(done.name);
    seconds += done.time.count();
    most_live = std::max(most_live, done.live);
    for (const Memory& argument : done.arguments) known[argument.id] = argument.bytes;
    for (const Memory& result : done.results) {
      is_new = is_new && !known.contains(result.id);
      known[result.id] = result.bytes;
      made += result.bytes;
    }
    for (const std::size_t each : done.written) {
      ++written;
      is_argument = is_argument && each < done.arguments.size();
    }
  }
  void dropped(const Value& value) noexcept override {
    ++drops;
    drop_bytes += value.bytes;
    makers.emplace_back(value.maker);
  }
  void restored(const Value& value) noexcept override {
    ++returns;
    restored_bytes += value.bytes;
  }
  void spent(const Value& value) noexcept override {
    ++spares;
    spent_bytes += value.bytes;
    makers.emplace_back(value.maker);
  }
  void replayed(const Replay& done) noexcept override {
    ++replays;
    replay_seconds += done.time.count();
  }
  void released(const Memory& memory) noexcept override {
    ++releases;
    is_known = is_known && known.contains(memory.id);
  }

  std::vector<std::string> names, makers;
  std::map<std::uint64_t, Bytes> known;
  double seconds = 0, replay_seconds = 0;
  Bytes most_live, made, drop_bytes, restored_bytes, spent_bytes;
  std::int64_t drops = 0, returns = 0, spares = 0, replays = 0, releases = 0, written = 0;
  bool is_new = true, is_argument = true, is_known = true;
};

class Observer : public ::testing::Test {
 protected:
  Observer() { w.set_requires_grad(true); }

  at::Tensor forward() const {
    at::Tensor y = x;
    for (int i = 0; i < 12; ++i) y = at::dropout(at::tanh(at::mm(y, w)), 0.1, true);
    return y.view({-1}).mul_(2);
  }
  Tensors gradients(MemoryBudget& budget) const {
    return gradients_under(budget, [this] { return forward(); }, {w});
  }

  at::Tensor x = at::randn({64, 64});
  at::Tensor w = at::randn({64, 64}) / 8;
  std::shared_ptr<Log> log = std::make_shared<Log>();
};

TEST_F(Observer, IsToldOfEveryOperatorOnceAndOfNothingElseWithoutPressure) {
  MemoryBudget budget(GiB(64), {.observer = log});
  const Tensors mine = gradients(budget);
  EXPECT_TRUE(same_bits(mine, plain_gradients([this] { return forward(); }, {w})));
  EXPECT_EQ(static_cast<std::int64_t>(log->names.size()), budget.report().operators);
  EXPECT_EQ(std::ranges::count(log->names, "aten::mm"), 12 * 3 - 1);
  EXPECT_EQ(std::ranges::count(log->names, "aten::view"), 0);
  EXPECT_EQ(log->drops, 0);
  EXPECT_EQ(log->replays, 0);
  EXPECT_GT(log->releases, 0);
  EXPECT_GT(log->written, 0);
  EXPECT_GT(log->seconds, 0);
  EXPECT_LE(log->most_live, budget.report().peak);
  EXPECT_TRUE(log->is_new && log->is_argument && log->is_known);
}

TEST_F(Observer, IsToldOfWhatWasDroppedAndOfWhatCameBack) {
  MemoryBudget budget(live_bytes() + KB(500), {.observer = log});
  gradients(budget);
  const StepReport report = budget.report();
  EXPECT_GT(log->drops, 0);
  EXPECT_EQ(log->drops, report.dropped + report.packed);
  EXPECT_EQ(log->drop_bytes, report.dropped_bytes + report.packed_bytes);
  EXPECT_EQ(log->replays, report.replayed);
  EXPECT_DOUBLE_EQ(log->replay_seconds, report.replay_time.count());
  EXPECT_GT(log->restored_bytes, Bytes(0));
  EXPECT_EQ(static_cast<std::int64_t>(log->names.size()), report.operators);
  for (const std::string& maker : log->makers) EXPECT_TRUE(maker.starts_with("aten::")) << maker;
}

TEST_F(Observer, IsToldWhatReplaysHaveUsedUp) {
  MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1), .observer = log, .paranoid = true});
  auto step = budget.step();
  // In the end nobody holds what sin() and cos() made, nor the contents after add_().
  const at::Tensor y = x.sin().add_(1).cos().exp();
  EXPECT_EQ(log->spares, 2);  // what sin() made, before cos() and before exp()
  const std::int64_t drops = log->drops, spares = log->spares, returns = log->returns;
  y.sum();
  // Of four values that were made again one is held.
  EXPECT_EQ(log->returns - returns, 4);
  EXPECT_EQ(log->spares - spares, 3);
  EXPECT_EQ(log->drops - drops, 2);  // and the sum
  EXPECT_EQ(log->spent_bytes, Bytes(64 * 64 * 4) * log->spares);
  step.finish();
}

TEST_F(Observer, ReplaysPastTheirLimitEndTheStep) {
  MemoryBudget budget(live_bytes() + KB(300),
                      {.replay_limit = std::chrono::nanoseconds(1), .observer = log});
  try {
    gradients(budget);
    ADD_FAILURE();
  } catch (const BudgetError& error) {
    EXPECT_NE(std::string(error.what()).find("BudgetOptions::replay_limit is 0.000000 s"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(log->replays, 1);
  w.mutable_grad().reset();
  MemoryBudget patient(live_bytes() + KB(300), {.replay_limit = std::chrono::seconds(100)});
  const Tensors mine = gradients(patient);
  EXPECT_TRUE(same_bits(mine, plain_gradients([this] { return forward(); }, {w})));
}

TEST(FractionOfDevice, IsAPartOfWhatTheMachineHas) {
  const Bytes all = MemoryBudget::fraction_of_device(1).limit();
  EXPECT_GT(all, MB(100));
  EXPECT_NEAR(MemoryBudget::fraction_of_device(0.5).limit().megabytes(), all.megabytes() / 2, 1e-3);
  EXPECT_THROW(MemoryBudget::fraction_of_device(0.5, {.heuristic = static_cast<Heuristic>(7)}),
               UsageError);
}

TEST(FractionOfDevice, RefusesWhatIsNoFraction) {
  for (const double wrong : {0.0, -0.1, 1.01, 90.0, std::numeric_limits<double>::quiet_NaN()}) {
    try {
      MemoryBudget::fraction_of_device(wrong);
      ADD_FAILURE() << wrong;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("it must be above 0 and at most 1"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace reprise
