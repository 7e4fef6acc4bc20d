// Texts of a budget that has no room: what they count, and to whom they send.
#include "tape/refusal.h"

#include <ATen/EmptyTensor.h>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "tests/refusal.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using testing::leaf;
using ::testing::Not;

constexpr std::int64_t kMega = 1 << 18;  // floats in a MiB

// What asking for far too much says.
std::string refusal_now() {
  return refusal_of<BudgetError>(
      [] { c10::GetAllocator(c10::kCPU)->allocate(std::size_t{1} << 40); });
}

// "1.0 MB in gradients": the bytes before the words; 0 where they are not in the text.
double megabytes_of(const std::string& text, const std::string& words) {
  const auto at = text.find(" " + words);
  if (at == std::string::npos) return 0;
  const auto unit = text.rfind(' ', at - 1), number = text.rfind(' ', unit - 1);
  return parse_bytes(text.substr(number + 1, at - number - 1)).megabytes();
}

double live_of(const std::string& text) {
  return megabytes_of(text, "are live that cannot be dropped now");
}

constexpr const char* kClasses[] = {"in tensors older than the step",
                                    "in gradients",
                                    "in other results of the step that cannot be recomputed",
                                    "in use",
                                    "taken by this operator so far",
                                    "taken by a running operator",
                                    "in tensors too small to drop",
                                    "in tensors that the program has released but replays read",
                                    "in the bits of packed tensors",
                                    "that LibTorch keeps",
                                    "held by threads outside the step",
                                    "allocated past operators",
                                    "in small results that nothing has read"};

// All of the live bytes is there, and nothing twice.
void expect_sum(const std::string& text) {
  double sum = 0;
  for (const char* each : kClasses) sum += megabytes_of(text, each);
  EXPECT_NEAR(sum, live_of(text), 0.3) << text;
  EXPECT_THAT(text, Not(HasSubstr(" -")));
}

TEST(Refusal, TellsTensorsOlderThanTheStepAlsoThoseThatNobodyReads) {
  const Tensor read = torch::ones({2 * kMega}), unread = torch::ones({3 * kMega});
  const Bytes before = live_bytes();
  MemoryBudget budget(before + MiB(64));
  auto step = budget.step();
  const Tensor y = read.sin();
  const std::string text = refusal_now();
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, kClasses[0]), before.megabytes(), 0.2) << text;
}

TEST(Refusal, TellsGradients) {
  const Tensor x = leaf({4 * kMega});
  MemoryBudget budget(live_bytes() + MiB(64));
  auto step = budget.step();
  x.sin().sum().backward();
  const std::string text = refusal_now();
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, "in gradients"), MiB(4).megabytes(), 0.1) << text;
}

TEST(Refusal, TellsWhatCannotBeMadeAgain) {
  MemoryBudget budget(live_bytes() + MiB(64));
  auto step = budget.step();
  const Tensor made = torch::ones({3 * kMega});
  const std::string text = refusal_now();
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, kClasses[2]), MiB(3).megabytes(), 0.1) << text;
}

TEST(Refusal, TellsWhatIsPinned) {
  const Tensor x = torch::ones({2 * kMega});
  MemoryBudget budget(live_bytes() + MiB(64));
  auto step = budget.step();
  const Tensor y = x.sin();
  const Pin pin(y);
  const std::string text = refusal_now();
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, "in use"), MiB(2).megabytes(), 0.1) << text;
}

TEST(Refusal, TellsSmallTensors) {
  MemoryBudget budget(live_bytes() + MiB(64), {.min_bytes = MiB(2)});
  auto step = budget.step();
  std::vector<Tensor> small;
  for (int i = 0; i < 4; ++i) small.push_back(torch::ones({kMega}));
  // Calls that make nothing large are passed by: the tape meets what they made when it is read.
  const Tensor large = at::cat(small);
  const std::string text = refusal_now();
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, "in tensors too small"), MiB(4).megabytes(), 0.1) << text;
}

TEST(Refusal, TellsDeadTensorsThatReplaysRead) {
  MemoryBudget budget(live_bytes() + MiB(64));
  auto step = budget.step();
  Tensor x = torch::ones({3 * kMega});
  // More than the root: to keep that is less than to keep them.
  const Tensor y = x.sin(), z = x.cos();
  x = Tensor();
  const std::string text = refusal_now();
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, "in tensors that the program has released"), MiB(3).megabytes(),
              0.1)
      << text;
}

TEST(Refusal, TellsWhatTheRunningOperatorHasTaken) {
  const Tensor x = torch::ones({kMega, 2});
  MemoryBudget budget(live_bytes() + MiB(2));
  auto step = budget.step();
  // The values fit, and the indices, twice as large, do not.
  const std::string text = refusal_of<BudgetError>([&] { x.max(1); });
  ASSERT_THAT(text, HasSubstr("aten::max"));
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, "taken by this operator so far"), MiB(1).megabytes(), 0.1) << text;
}

TEST(Refusal, TellsWhatNobodyHasRead) {
  MemoryBudget budget(live_bytes() + MiB(64), {.min_bytes = MiB(2)});
  auto step = budget.step();
  std::vector<Tensor> small;
  // The first is recorded.
  for (int i = 0; i < 4; ++i) small.push_back(torch::ones({kMega}));
  const std::string text = refusal_now();
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, "in small results that nothing has read"), MiB(3).megabytes(), 0.1)
      << text;
}

// Kernels of other libraries allocate so.
Tensor allocated_past_operators(std::int64_t floats) {
  return at::detail::empty_cpu({floats}, at::TensorOptions(at::kFloat));
}

TEST(Refusal, TellsWhatWasAllocatedPastOperators) {
  MemoryBudget budget(live_bytes() + MiB(64));
  auto step = budget.step();
  const auto memory = c10::GetAllocator(c10::kCPU)->allocate(std::size_t{3} << 20);
  // Read and unread, alive, and dead where replays read it.
  Tensor read = allocated_past_operators(2 * kMega).fill_(1),
         dead = allocated_past_operators(kMega);
  const Tensor unread = allocated_past_operators(kMega);
  const Tensor made = read.sin(), of_dead = dead.fill_(2).sin(), more_of_dead = dead.cos();
  dead = Tensor();
  const std::string text = refusal_now();
  expect_sum(text);
  EXPECT_NEAR(megabytes_of(text, "allocated past operators"), MiB(7).megabytes(), 0.1) << text;
  EXPECT_NEAR(budget.report().past_operators.megabytes(), MiB(7).megabytes(), 0.1);
  step.finish();
  EXPECT_NEAR(budget.report().past_operators.megabytes(), MiB(7).megabytes(), 0.1);
}

TEST(Refusal, CountsNothingPastOperatorsThatTheTapeAllocatesItself) {
  const Tensor x = leaf({2 * kMega});
  MemoryBudget budget(live_bytes() + MiB(64), testing::paranoid());
  auto step = budget.step();
  Tensor y = x.sin().cos();
  { const Pin pin(y); }
  y.mul_(2).sum().backward();
  std::thread([] { c10::GetAllocator(c10::kCPU)->allocate(std::size_t{3} << 20); }).join();
  step.finish();
  EXPECT_GT(budget.report().replayed, 0);
  EXPECT_LT(budget.report().past_operators, KB(1));
}

TEST(Refusal, PartsAddUpToTheLiveBytesWhateverIsKnown) {
  using tape::LiveParts;
  for (const std::int64_t live : {0, 50, 1000}) {
    for (const std::int64_t at_begin : {0, 30, 2000}) {
      for (const std::int64_t running : {-20, 0, 10, 5000}) {
        LiveParts seen;
        seen.older = live / 4;
        seen.in_use = live / 3;
        const LiveParts all = tape::completed(seen, live, at_begin, running);
        EXPECT_EQ(all.sum(), live);
        EXPECT_GE(all.running, 0);
        EXPECT_GE(all.unseen, 0);
        EXPECT_GE(all.older, seen.older);
      }
    }
  }
}

// Tensors that a step has dropped and the program goes on to hold. Equal elements could be packed,
// if that is measured to be quick.
std::vector<Tensor> held_chain(int length) {
  std::vector<Tensor> kept;
  Tensor h = torch::rand({kMega});
  for (int i = 0; i < length; ++i) {
    h = torch::sin(h) * 1.1;
    kept.push_back(h);
  }
  return kept;
}

TEST(Refusal, OfFinishNamesAllThatComesBackAndWhatSuffices) {
  const auto finish_in = [](Bytes above) {
    MemoryBudget budget(live_bytes() + above);
    auto step = budget.step();
    const std::vector<Tensor> kept = held_chain(12);
    return refusal_of<BudgetError>([&] { step.finish(); });
  };
  const Bytes before = live_bytes();
  const std::string text = finish_in(MiB(6));
  EXPECT_THAT(text, HasSubstr("finish() restores the "));
  EXPECT_THAT(text, HasSubstr(" tensors of the step that were dropped and are still held, "));
  EXPECT_THAT(text,
              HasSubstr("Release tensors that are not needed before finish(), or leave the step's "
                        "scope without finish()"));
  const auto open = text.find(" (", text.find("That takes "));
  const Bytes enough(std::stoll(text.substr(open + 2)));
  // Twelve results and the root.
  EXPECT_NEAR((enough - before).megabytes(), MiB(13).megabytes(), 2.5);
  EXPECT_EQ(finish_in(enough - before), "");
}

TEST(Refusal, OfFinishLeavesToOtherStepsWhatTheyCanDrop) {
  MemoryBudget budget(live_bytes() + MiB(14));
  auto step = budget.step();
  std::vector<Tensor> kept = held_chain(6);
  // Takes the room of most of them while both are open.
  std::promise<void> is_filled, may_end;
  std::thread other([&] {
    auto inner = budget.step();
    std::vector<Tensor> others = held_chain(8);
    is_filled.set_value();
    may_end.get_future().wait();
    others.clear();
    inner.finish();
  });
  is_filled.get_future().wait();
  EXPECT_EQ(refusal_of<BudgetError>([&] { step.finish(); }), "");
  may_end.set_value();
  other.join();
}

TEST(Refusal, OfWhatStayedGoneSaysThatItsStepHasEnded) {
  std::vector<Tensor> kept;
  {
    MemoryBudget budget(live_bytes() + MiB(6));
    auto step = budget.step();
    kept = held_chain(12);
  }
  MemoryBudget other(live_bytes() + MiB(64));
  for (const bool in_a_step : {false, true}) {
    std::optional<MemoryBudget::Step> step;
    if (in_a_step) step.emplace(other.step());
    int gone = 0;
    for (const Tensor& each : kept) {
      const std::string text = refusal_of<std::exception>([&] { each.sum(); });
      if (text.empty()) continue;
      ++gone;
      EXPECT_THAT(text, HasSubstr("step that has ended since, and are lost"));
      EXPECT_THAT(text, Not(HasSubstr("end the step")));
    }
    EXPECT_GE(gone, 6);
  }
}

TEST(Refusal, OfAReadOnAnotherThreadNamesTheThreadOfTheStep) {
  MemoryBudget budget(live_bytes() + MiB(6));
  auto step = budget.step();
  const std::vector<Tensor> kept = held_chain(12);
  const std::string mine = "under way on thread " + std::to_string(gettid()) + ".";
  int dropped = 0;
  for (const Tensor& each : kept) {
    const auto read = [&] { return refusal_of<std::exception>([&] { each.data_ptr(); }); };
    const std::string here = read();
    if (here.empty()) continue;
    ++dropped;
    EXPECT_THAT(here, HasSubstr("hold a reprise::Pin on it"));
    std::string pointer, call;
    std::thread([&] {
      pointer = read();
      call = refusal_of<std::exception>([&] { each.add_(1); });
    }).join();
    EXPECT_THAT(pointer, HasSubstr(mine));
    EXPECT_THAT(call, HasSubstr(mine));
  }
  EXPECT_GE(dropped, 6);
}

}  // namespace
}  // namespace reprise
