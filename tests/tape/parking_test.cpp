// A budget with a store: values are parked that are dear to make again, dropped where that is
// cheaper, and made again where the store fails.
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <reprise/budget_extensions.h>
#include <reprise/store.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "tape/replay_costs.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using testing::same_bits;

// Copies, and may fail or dawdle.
class TestStore final : public Store {
 public:
  enum class Fault { kNone, kPark, kLoad, kParkOther, kLoadOther };

  explicit TestStore(Fault fault = Fault::kNone, int milliseconds = 0)
      : fault_(fault), pause_(milliseconds) {}
  bool exact() const override { return true; }
  bool takes(c10::Device device) const override { return device.is_cpu(); }
  std::string name() const override { return "test store"; }

 protected:
  class Parked final : public ParkedTensor {
   public:
    Parked(const at::Tensor& flat, Fault fault)
        : bytes_(flat.data_ptr<std::uint8_t>(), flat.data_ptr<std::uint8_t>() + flat.numel()),
          fault_(fault) {}
    at::Tensor load() override {
      if (fault_ == Fault::kLoad) throw StoreError("test store: nothing comes back");
      if (fault_ == Fault::kLoadOther) throw 7;  // NOLINT: users' stores throw what they like
      at::Tensor flat = at::empty({static_cast<std::int64_t>(bytes_.size())}, at::kByte);
      std::copy(bytes_.begin(), bytes_.end(), flat.data_ptr<std::uint8_t>());
      return flat;
    }
    Bytes bytes() const override { return Bytes(static_cast<std::int64_t>(bytes_.size())); }

   private:
    std::vector<std::uint8_t> bytes_;
    Fault fault_;
  };
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override {
    if (fault_ == Fault::kPark) throw StoreError("test store: full");
    if (fault_ == Fault::kParkOther) throw std::out_of_range("test store: a defect");
    std::this_thread::sleep_for(pause_);
    return std::make_unique<Parked>(flat, fault_);
  }

 private:
  const Fault fault_;
  const std::chrono::milliseconds pause_;
};

// Small products of long vectors: some hundred microseconds for 16 KiB.
struct DearStep {
  at::Tensor wide = at::randn({64, 8192});
  at::Tensor tall = at::randn({8192, 64});
  at::Tensor scale = at::randn({64, 64}).requires_grad_();

  at::Tensor operator()() {
    scale.mutable_grad() = at::Tensor();
    at::Tensor x = scale * 1;
    for (int i = 0; i < 12; ++i) x = (x * wide.mm(tall)).tanh();
    x.sum().backward();
    return scale.grad().clone();
  }
};

struct ParkedRun {
  at::Tensor gradient;
  StepReport report;
};

ParkedRun run_with(const std::shared_ptr<Store>& store, DearStep& step) {
  MemoryBudget budget(live_bytes() + KiB(200),
                      {.store = store, .min_bytes = KiB(1), .verify = true});
  ParkedRun run;
  // What operators cost is known from the second step on.
  for (int i = 0; i < 2; ++i) {
    auto managed = budget.step();
    run.gradient = step();
    managed.finish();
  }
  run.report = budget.report();
  return run;
}

// To make a value again takes a second, and the store much less.
class Parking : public ::testing::Test {
  const tape::ReplayCosts::GivenScope costs_{{.seconds_a_replay = 1, .packed_bytes_a_second = 1e9}};
};

TEST_F(Parking, MovesWhatIsDearToMakeAgain) {
  DearStep step;
  const at::Tensor plain = step();
  const ParkedRun run = run_with(std::make_shared<TestStore>(), step);
  EXPECT_TRUE(same_bits(plain, run.gradient));
  EXPECT_GT(run.report.parked, 0);
  EXPECT_GT(run.report.loaded, 0);
  EXPECT_GE(run.report.parked_bytes, KiB(16) * run.report.parked);
  EXPECT_GT(run.report.transfer_time.count(), 0);
}

TEST(SlowParking, IsLeftOffForValuesThatAreSoonerMadeAgain) {
  const tape::ReplayCosts::GivenScope costs(
      {.seconds_a_replay = 1e-3, .packed_bytes_a_second = 1e9});
  DearStep step;
  const at::Tensor plain = step();
  // Each value that it takes makes it dearer, until it is too dear for all.
  const auto store = std::make_shared<TestStore>(TestStore::Fault::kNone, 200);
  MemoryBudget budget(live_bytes() + KiB(200),
                      {.store = store, .min_bytes = KiB(1), .verify = true});
  for (int i = 0; i < 2 || (i < 20 && budget.report().parked > 0); ++i) {
    auto managed = budget.step();
    EXPECT_TRUE(same_bits(plain, step()));
    managed.finish();
  }
  EXPECT_GT(budget.report().dropped, 0);
  EXPECT_EQ(budget.report().parked, 0);
}

TEST_F(Parking, MakesAgainWhatTheStoreDoesNotTake) {
  DearStep step;
  const at::Tensor plain = step();
  for (const auto fault : {TestStore::Fault::kPark, TestStore::Fault::kParkOther}) {
    const ParkedRun run = run_with(std::make_shared<TestStore>(fault), step);
    EXPECT_TRUE(same_bits(plain, run.gradient));
    EXPECT_EQ(run.report.parked, 0);
    EXPECT_GT(run.report.replayed, 0);
  }
}

TEST_F(Parking, MakesAgainWhatTheStoreDoesNotGiveBack) {
  DearStep step;
  const at::Tensor plain = step();
  for (const auto fault : {TestStore::Fault::kLoad, TestStore::Fault::kLoadOther}) {
    const ParkedRun run = run_with(std::make_shared<TestStore>(fault), step);
    EXPECT_TRUE(same_bits(plain, run.gradient));
    EXPECT_GT(run.report.parked, 0);
    EXPECT_EQ(run.report.loaded, 0);
    EXPECT_GT(run.report.replayed, 0);
  }
}

TEST_F(Parking, TakesTimeThatIsNoneOfTheOperators) {
  struct Slowest : BudgetObserver {
    void recorded(const Operator& done) noexcept override {
      seconds = std::max(seconds, done.time.count());
    }
    double seconds = 0;
  };
  DearStep step;
  const auto slowest = std::make_shared<Slowest>();
  MemoryBudget budget(live_bytes() + KiB(200),
                      {.store = std::make_shared<TestStore>(TestStore::Fault::kNone, 400),
                       .min_bytes = KiB(1),
                       .observer = slowest});
  double transfers = 0, replays = 0;
  for (int i = 0; i < 2; ++i) {
    auto managed = budget.step();
    step();
    // What a step under way has done so far is told as well.
    EXPECT_GT(budget.report().peak, Bytes(0));
    EXPECT_LE(budget.report().peak, budget.limit());
    transfers += budget.report().transfer_time.count();
    managed.finish();
    replays += budget.report().replay_time.count();
  }
  EXPECT_GE(transfers, 0.4);
  EXPECT_LT(slowest->seconds, 0.3);
  EXPECT_LT(replays, 0.3);
}

TEST_F(Parking, IsToldOfTheStepThatWaited) {
  DearStep step;
  MemoryBudget budget(live_bytes() + KiB(200),
                      {.store = std::make_shared<TestStore>(), .min_bytes = KiB(1)});
  auto idle = budget.step();
  std::thread([&] {
    StepReport last;
    for (int i = 0; i < 2; ++i) {
      auto managed = budget.step();
      step();
      last = budget.report();
      managed.finish();
    }
    EXPECT_GT(last.parked, 0);
    EXPECT_GT(last.transfer_time.count(), 0);
  }).join();
  EXPECT_EQ(budget.report().transfer_time.count(), 0);
  idle.finish();
  EXPECT_EQ(budget.report().transfer_time.count(), 0);
}

TEST_F(Parking, StaysWithinTheBudgetWhileADiskWrites) {
  std::string folder = (std::filesystem::temp_directory_path() / "reprise-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  DearStep step;
  const at::Tensor plain = step();
  for (const Bytes in_flight : {Bytes(0), MiB(64)}) {
    const auto store = disk_store({.folder = folder, .in_flight = in_flight});
    const ParkedRun run = run_with(store, step);
    EXPECT_TRUE(same_bits(plain, run.gradient));
    EXPECT_EQ(store->statistics().count, 0);
  }
  std::filesystem::remove_all(folder);
}

TEST_F(Parking, EverythingComesBackUnderParanoia) {
  DearStep step;
  const at::Tensor plain = step();
  MemoryBudget budget(GiB(8), {.store = std::make_shared<TestStore>(),
                               .min_bytes = Bytes(1),
                               .verify = true,
                               .paranoid = true});
  auto managed = budget.step();
  const at::Tensor gradient = step();
  managed.finish();
  EXPECT_TRUE(same_bits(plain, gradient));
  EXPECT_GT(budget.report().loaded, 0);
}

TEST_F(Parking, BringsBackAtTheEndWhatIsStillHeld) {
  DearStep step;
  const auto products = [&] {
    std::vector<at::Tensor> made;
    for (int i = 0; i < 4; ++i) made.push_back(step.wide.mm(step.tall) * (i + 1));
    return made;
  };
  const std::vector<at::Tensor> plain = products();
  MemoryBudget budget(GiB(8), {.store = std::make_shared<TestStore>(),
                               .min_bytes = Bytes(1),
                               .verify = true,
                               .paranoid = true});
  std::int64_t recorded = 0;
  for (int i = 0; i < 2; ++i) {
    auto managed = budget.step();
    const std::vector<at::Tensor> mine = products();
    recorded = budget.report().operators;
    managed.finish();
    for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(same_bits(plain[k], mine[k]));
  }
  EXPECT_GT(budget.report().loaded, 0);
  // The store's own operators are none of the step's.
  EXPECT_EQ(budget.report().operators, recorded);
}

TEST_F(Parking, RefusesStoresThatAreNotForIt) {
  class Inexact final : public Store {
   public:
    explicit Inexact(bool exact) : exact_(exact) {}
    bool exact() const override { return exact_; }
    bool takes(c10::Device) const override { return !exact_; }
    std::string name() const override { return "a store"; }

   protected:
    std::unique_ptr<ParkedTensor> park_flat(const at::Tensor&) override { return nullptr; }

   private:
    const bool exact_;
  };
  const auto text = [](bool exact) {
    try {
      MemoryBudget budget(GiB(1), {.store = std::make_shared<Inexact>(exact)});
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(text(false),
            "BudgetOptions.store: a store does not give values back bit by bit, and the step would "
            "not be the plain one; give it an exact store");
  EXPECT_EQ(text(true),
            "BudgetOptions.store: a store does not take tensors in host memory; give it a "
            "disk_store()");
}

TEST(ParkingOptions, AStoreThatFreesNothingIsRefused) {
  EXPECT_EQ(
      testing::error_of<UsageError>([] { MemoryBudget budget(GiB(1), {.store = memory_store()}); }),
      "BudgetOptions.store: the memory store keeps values where they are, in memory that the "
      "budget counts, so that parking there would free nothing; give it a disk_store(), or "
      "none");
}

}  // namespace
}  // namespace reprise
