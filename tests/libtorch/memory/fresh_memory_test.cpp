// Telling memory that was allocated in a period from memory that was there before.
#include "libtorch/memory/fresh_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <thread>
#include <vector>

namespace reprise::libtorch {
namespace {

Age age_of(const FreshMemory& period, const at::Tensor& tensor) {
  return period.mark().age_of(*tensor.storage().unsafeGetStorageImpl());
}

TEST(FreshMemory, MemoryOfThePeriodIsToldFromOlderMemory) {
  const at::Tensor before = torch::zeros({10});
  const FreshMemory period;
  const at::Tensor after = torch::zeros({10});
  EXPECT_EQ(age_of(period, before), Age::kOlder);
  EXPECT_EQ(age_of(period, after), Age::kFresh);
  EXPECT_EQ(age_of(period, before.view({2, 5}).t()), Age::kOlder) << "a view has its base's age";
}

TEST(FreshMemory, PeriodsNest) {
  const FreshMemory outer;
  const at::Tensor between = torch::zeros({10});
  std::optional<FreshMemory> inner;
  inner.emplace();
  const at::Tensor inside = torch::zeros({10});
  EXPECT_EQ(age_of(*inner, between), Age::kOlder);
  EXPECT_EQ(age_of(outer, between), Age::kFresh);
  EXPECT_EQ(age_of(*inner, inside), Age::kFresh);
  inner.reset();
  const at::Tensor later = torch::zeros({10});
  EXPECT_EQ(age_of(outer, inside), Age::kFresh);
  EXPECT_EQ(age_of(outer, later), Age::kFresh);
  inner.emplace();
  EXPECT_EQ(age_of(*inner, later), Age::kOlder);
}

TEST(FreshMemory, MemoryThatIsUsedAgainIsAsYoungAsItsLastUse) {
  // Freed and handed out again, most likely in the same place.
  at::Tensor tensor = torch::zeros({1000});
  const FreshMemory outer;
  tensor = at::Tensor();
  tensor = torch::zeros({1000});
  EXPECT_EQ(age_of(outer, tensor), Age::kFresh);
  const FreshMemory inner;
  EXPECT_EQ(age_of(inner, tensor), Age::kOlder);
  tensor = at::Tensor();
  tensor = torch::zeros({1000});
  EXPECT_EQ(age_of(inner, tensor), Age::kFresh);
}

TEST(FreshMemory, ManyAllocationsAreAllRemembered) {
  std::vector<at::Tensor> before(3000);
  for (at::Tensor& tensor : before) tensor = torch::empty({3});
  const FreshMemory outer;
  std::vector<at::Tensor> between(3000);
  for (at::Tensor& tensor : between) tensor = torch::empty({3});
  const FreshMemory inner;
  std::vector<at::Tensor> inside(3000);
  for (at::Tensor& tensor : inside) tensor = torch::empty({3});
  for (std::size_t i = 0; i < inside.size(); ++i) {
    ASSERT_EQ(age_of(outer, before[i]), Age::kOlder);
    ASSERT_EQ(age_of(outer, between[i]), Age::kFresh);
    ASSERT_EQ(age_of(inner, between[i]), Age::kOlder);
    ASSERT_EQ(age_of(inner, inside[i]), Age::kFresh);
  }
}

TEST(FreshMemory, NothingIsOlderThanNoMemory) {
  const at::Tensor empty = torch::zeros({0});
  const at::Tensor meta = torch::zeros({3}, torch::kMeta);
  const FreshMemory period;
  EXPECT_EQ(age_of(period, empty), Age::kFresh);
  EXPECT_EQ(age_of(period, meta), Age::kFresh);
}

TEST(FreshMemory, MemoryOfOtherMakersHasNoKnownAge) {
  float data[3] = {};
  const at::Tensor before = torch::from_blob(data, {3});
  const FreshMemory period;
  EXPECT_EQ(age_of(period, before), Age::kUnknown);
}

TEST(FreshMemory, OnOtherThreadsAgesAreUnknown) {
  const at::Tensor before = torch::zeros({10});
  const FreshMemory period;
  at::Tensor theirs;
  std::thread([&] {
    EXPECT_EQ(age_of(period, before), Age::kUnknown);
    theirs = torch::zeros({10});
  }).join();
  // It may have come from there.
  EXPECT_EQ(age_of(period, theirs), Age::kUnknown);
  EXPECT_EQ(age_of(period, before), Age::kUnknown);
  EXPECT_EQ(age_of(period, torch::zeros({10})), Age::kFresh);
  const FreshMemory next;
  EXPECT_EQ(age_of(next, theirs), Age::kOlder);
}

}  // namespace
}  // namespace reprise::libtorch
