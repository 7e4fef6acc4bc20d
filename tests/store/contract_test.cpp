// The contract of reprise/store.h, run over every store of store_cases.cpp.
#include <rapidcheck.h>

#include <random>
#include <thread>

#include "tests/store/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

class StoreContract : public ::testing::TestWithParam<StoreCase> {
 protected:
  // Parks and loads.
  at::Tensor round_trip(const at::Tensor& tensor, bool prefetch = false) {
    const auto parked = store_->park(tensor);
    store_->flush();
    if (prefetch) parked->prefetch();
    return parked->load();
  }

  Faults faults_;
  std::shared_ptr<Store> store_ = GetParam().make(faults_);
};
INSTANTIATE_TEST_SUITE_P(Stores, StoreContract, ::testing::ValuesIn(store_cases()),
                         [](const auto& info) { return info.param.name; });

// What is exact must come back bit by bit; of an inexact store, floating-point values closely, from
// values (whatever lies between those of a view included) of so wide a range.
::testing::AssertionResult comes_back(const StoreCase& store, const at::Tensor& actual,
                                      const at::Tensor& expected, double range) {
  if (store.exact || !expected.is_floating_point()) return same_tensor(actual, expected);
  if (actual.sizes() == expected.sizes() && actual.strides() == expected.strides() &&
      actual.dtype() == expected.dtype() && !actual.requires_grad() &&
      at::allclose(actual, expected, 1e-2, 1e-2 + range * store.of_range)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "not even close";
}

// The same of small whole numbers, which rounding to fewer bits leaves as they are.
::testing::AssertionResult whole_comes_back(const StoreCase& store, const at::Tensor& actual,
                                            const at::Tensor& expected, double range) {
  return store.of_range == 0 ? same_tensor(actual, expected)
                             : comes_back(store, actual, expected, range);
}

TEST_P(StoreContract, GivesBackEveryDtype) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                     at::kInt, at::kShort, at::kChar, at::kByte, at::kBool,
                                     at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn}) {
    const at::Tensor tensor = torch::randint(0, 2, {3, 5}).to(dtype);
    EXPECT_TRUE(same_tensor(round_trip(tensor), tensor)) << dtype;
  }
}

TEST_P(StoreContract, GivesBackEveryShapeFromNoElementToManyBlocks) {
  for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{
           {}, {1}, {0}, {3, 0, 2}, {7}, {2048}, {2049}, {64, 1000}, {1, 1, 1, 1, 5}, {300'001}}) {
    const at::Tensor tensor = torch::randint(-9, 10, sizes).to(at::kFloat);
    EXPECT_TRUE(whole_comes_back(GetParam(), round_trip(tensor), tensor, 18)) << sizes;
    EXPECT_TRUE(whole_comes_back(GetParam(), round_trip(tensor, /*prefetch=*/true), tensor, 18))
        << sizes;
  }
}

TEST_P(StoreContract, GivesBackEveryKindOfView) {
  const at::Tensor base = torch::randint(-3, 4, {6, 8, 10}).to(at::kFloat);
  const at::Tensor complex = at::complex(base, base + 1);
  const Tensors views = {base.transpose(0, 2),
                         base.select(0, 2),
                         base.select(2, 3),
                         base.narrow(1, 2, 3),
                         base.slice(0, 1, 6, 2),
                         base.select(0, 1).unsqueeze(1).expand({8, 5, 10}),
                         base.as_strided({4, 4}, {1, 2}, 5),
                         base.permute({2, 0, 1}),
                         base.as_strided({3, 2}, {0, 1}, 479 - 1),
                         base.as_strided({1, 3}, {1000, 1}, 0),
                         base.as_strided({2, 0}, {7, 3}, 4),
                         base.permute({1, 2, 0}).narrow(0, 0, 0),
                         complex.conj(),
                         complex.select(1, 2).conj(),
                         at::imag(complex.conj()),
                         at::real(complex)};
  for (std::size_t i = 0; i < views.size(); ++i) {
    EXPECT_TRUE(whole_comes_back(GetParam(), round_trip(views[i]), views[i], 7)) << "view " << i;
  }
}

TEST_P(StoreContract, GivesBackAnyViewOfAnyTensor) {
  EXPECT_TRUE(rc::check("a random strided view comes back as it was", [&] {
    const auto sizes = *rc::gen::container<std::vector<std::int64_t>>(
        static_cast<std::size_t>(*rc::gen::inRange(0, 5)), rc::gen::inRange<std::int64_t>(0, 7));
    const auto strides = *rc::gen::container<std::vector<std::int64_t>>(
        sizes.size(), rc::gen::inRange<std::int64_t>(0, 12));
    const auto offset = *rc::gen::inRange<std::int64_t>(0, 9);
    const at::Tensor memory = torch::randint(0, 100, {400}).to(at::kFloat);
    const at::Tensor view = memory.as_strided(sizes, strides, offset);
    const auto result = comes_back(GetParam(), round_trip(view), view, 100);
    if (!result) RC_FAIL(result.message());
  }));
}

TEST_P(StoreContract, RandomValuesComeBackExactlyIfTheStoreSaysSo) {
  const at::Tensor tensor = torch::randn({100, 100});
  const double range = (tensor.max() - tensor.min()).item<double>();
  EXPECT_TRUE(comes_back(GetParam(), round_trip(tensor), tensor, range));
  const at::Tensor odd = torch::tensor({0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f});
  if (store_->exact()) {
    EXPECT_TRUE(same_tensor(round_trip(odd), odd));
  }
}

TEST_P(StoreContract, SaysWhetherItIsExact) { EXPECT_EQ(store_->exact(), GetParam().exact); }

TEST_P(StoreContract, WhatComesBackHasNoHistory) {
  const at::Tensor leaf = torch::ones({10}).requires_grad_(true);
  for (const at::Tensor& tensor : {leaf, leaf * 2}) {
    const at::Tensor back = round_trip(tensor);
    EXPECT_FALSE(back.requires_grad());
    EXPECT_EQ(back.grad_fn(), nullptr);
    EXPECT_TRUE(same_bits(back, tensor));
  }
}

TEST_P(StoreContract, LoadsAgainAndAgain) {
  const at::Tensor tensor = torch::randint(-9, 10, {5000}).to(at::kFloat);
  const auto parked = store_->park(tensor);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(whole_comes_back(GetParam(), parked->load(), tensor, 18));
    if (i == 1) parked->prefetch();
    store_->flush();
  }
}

TEST_P(StoreContract, WhatWasMovedAwayComesBackInMemoryOfItsOwn) {
  const at::Tensor tensor = torch::full({5000}, 7.0);
  const auto parked = store_->park(tensor);
  store_->flush();
  const at::Tensor back = parked->load();
  if (store_->statistics().written > Bytes(0)) {
    EXPECT_FALSE(back.is_alias_of(tensor));
    EXPECT_FALSE(back.is_alias_of(parked->load()));
  }
  EXPECT_TRUE(same_bits(back, tensor));
}

TEST_P(StoreContract, KeepsTheValueWhenTheTensorIsGone) {
  at::Tensor tensor = torch::full({5000}, 7.0);
  const auto parked = store_->park(tensor);
  tensor.reset();
  EXPECT_TRUE(same_bits(parked->load(), torch::full({5000}, 7.0)));
}

TEST_P(StoreContract, DropsAtAnyTime) {
  for (int i = 0; i < 50; ++i) {
    auto parked = store_->park(torch::ones({10'000}));
    if (i % 5 == 1) store_->flush();
    if (i % 5 == 2) parked->prefetch();
    if (i % 5 == 3) {
      store_->flush();
      parked->prefetch();
    }
    if (i % 5 == 4) parked->load();
  }
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_P(StoreContract, ManyValuesAreKeptApartWhicheverOrderTheyAreReadIn) {
  constexpr int kCount = 300;
  const auto value = [](int i) { return torch::full({1 + (i * 37) % 3000}, i); };
  std::mt19937 random(1);
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  std::vector<int> order;
  for (int i = 0; i < kCount; ++i) {
    parked.push_back(store_->park(value(i)));
    order.push_back(i);
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    if (i % 3 == 0) parked[static_cast<std::size_t>((i + 7) % kCount)]->prefetch();
    EXPECT_TRUE(same_tensor(parked[static_cast<std::size_t>(i)]->load(), value(i)));
    // What others leave is used again.
    if (i % 2 == 0) parked[static_cast<std::size_t>(i)] = store_->park(value(i));
  }
}

TEST_P(StoreContract, PrefetchInReverseOrderChangesNothingButTheTime) {
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (int i = 0; i < 40; ++i) parked.push_back(store_->park(torch::full({3000}, i)));
  store_->flush();
  for (int i = 39; i >= 0; --i) {
    for (int j = i - 1; j >= 0 && parked[static_cast<std::size_t>(j)]->prefetch(); --j) {
    }
    EXPECT_TRUE(same_tensor(parked[static_cast<std::size_t>(i)]->load(), torch::full({3000}, i)));
    parked.pop_back();
  }
}

TEST_P(StoreContract, StatisticsCountWhatIsParkedAndReturnToZero) {
  EXPECT_EQ(store_->statistics().count, 0);
  auto first = store_->park(torch::ones({1000}));
  auto view = store_->park(torch::ones({10}).expand({500, 10}));
  auto empty = store_->park(torch::ones({0}));
  EXPECT_EQ(first->bytes(), Bytes(4000));
  EXPECT_EQ(view->bytes(), Bytes(40)) << "only the elements that exist";
  EXPECT_EQ(empty->bytes(), Bytes(0));
  EXPECT_EQ(store_->statistics().count, 3);
  EXPECT_EQ(store_->statistics().parked, Bytes(4040));
  store_->flush();
  EXPECT_EQ(store_->statistics().waiting, Bytes(0));
  first.reset();
  EXPECT_EQ(store_->statistics().parked, Bytes(40));
  view.reset();
  empty.reset();
  EXPECT_EQ(store_->statistics().count, 0);
  EXPECT_EQ(store_->statistics().parked, Bytes(0));
}

TEST_P(StoreContract, ATensorThatChangedWhileItWasParkedIsAnError) {
  at::Tensor tensor = torch::ones({1000});
  const auto parked = store_->park(tensor);
  tensor.add_(1);
  const std::string text = error_of<UsageError>([&] { parked->load(); });
  EXPECT_TRUE(contains(text, store_->name()));
  EXPECT_TRUE(contains(text, "4.0 KB was changed in place while it was parked"));
  EXPECT_TRUE(contains(text, "it is at version 1, was parked at 0"));
}

TEST_P(StoreContract, RefusesWhatIsNoPlainTensorAndSaysWhy) {
  const WarningLog quantized_tensors_are_deprecated;
  const at::Tensor dense = torch::eye(3);
  const std::vector<std::pair<at::Tensor, std::string>> cases = {
      {at::Tensor(), "it is undefined"},
      {dense.to_sparse(), "its layout is not strided"},
      {at::empty({2}, at::kMeta), "it has no memory"},
      {at::_efficientzerotensor({2}), "it has no memory"},
      {at::quantize_per_tensor(dense, 0.1, 0, at::kQInt8), "it is quantized"}};
  for (const auto& [tensor, reason] : cases) {
    const std::string text = error_of<UsageError>([&] { store_->park(tensor); });
    EXPECT_TRUE(
        contains(text, store_->name() + ": the tensor cannot be parked, because " + reason));
    EXPECT_TRUE(contains(text, "park strided tensors"));
  }
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_P(StoreContract, ThreadsParkAndLoadAtOnce) {
  const auto shared = store_->park(torch::full({20'000}, 3));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::unique_ptr<ParkedTensor>> mine;
      for (int i = 0; i < 20; ++i) {
        mine.push_back(store_->park(torch::full({2000 + i}, t * 100 + i)));
        if (i % 3 == 0) shared->prefetch();
        if (!at::equal(shared->load(), torch::full({20'000}, 3))) ++wrong;
      }
      for (int i = 19; i >= 0; --i) {
        if (i > 0) mine[static_cast<std::size_t>(i - 1)]->prefetch();
        if (!at::equal(mine[static_cast<std::size_t>(i)]->load(),
                       torch::full({2000 + i}, t * 100 + i))) {
          ++wrong;
        }
        if (i % 2 == 0) mine.pop_back();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(store_->statistics().count, 1);
}

TEST_P(StoreContract, ParkedTensorsKeepTheirStoreAlive) {
  const std::weak_ptr<Store> weak = store_;
  auto parked = store_->park(torch::ones({3000}));
  store_.reset();
  EXPECT_FALSE(weak.expired());
  EXPECT_TRUE(same_bits(parked->load(), torch::ones({3000})));
  parked.reset();
  EXPECT_TRUE(weak.expired());
}

TEST_P(StoreContract, LeavesNoByteBehind) {
  store_.reset();
  const Bytes before = live_bytes();
  store_ = GetParam().make(faults_);
  const Bytes with_store = live_bytes();
  {
    std::vector<std::unique_ptr<ParkedTensor>> parked;
    for (int i = 0; i < 20; ++i) parked.push_back(store_->park(torch::ones({5000})));
    for (int i = 19; i > 5; --i) {
      parked[static_cast<std::size_t>(i - 1)]->prefetch();
      parked[static_cast<std::size_t>(i)]->load();
    }
  }
  store_->flush();
  EXPECT_EQ(live_bytes(), with_store);
  store_.reset();
  EXPECT_EQ(live_bytes(), before);
}

// A "step": parks some values, fetches them ahead, loads them in reverse. False if an error showed.
bool step(Store& store, bool& told) {
  try {
    std::vector<std::unique_ptr<ParkedTensor>> parked;
    for (int i = 0; i < 6; ++i) parked.push_back(store.park(torch::full({4000}, i)));
    store.flush();
    for (int i = 5; i >= 0; --i) {
      if (i > 0) parked[static_cast<std::size_t>(i - 1)]->prefetch();
      EXPECT_TRUE(at::equal(parked[static_cast<std::size_t>(i)]->load(), torch::full({4000}, i)));
      parked.pop_back();
    }
  } catch (const StoreError& error) {
    EXPECT_TRUE(contains(error.what(), "32.0 KB")) << "the bytes are named";
    told = true;
    return false;
  }
  return true;
}

TEST_P(StoreContract, AFaultAtAnyOperationFailsOneStepAndTheNextOneWorks) {
  bool told = false;
  EXPECT_TRUE(step(*store_, told));
  const int operations = faults_.operations();
  // Files and transfers; other stores do nothing that could fail here.
  const bool moves = store_->name().find("disk") != std::string::npos ||
                     store_->name().find("host") != std::string::npos;
  ASSERT_EQ(operations > 0, moves) << store_->name();
  if (!moves) GTEST_SKIP() << store_->name() << " moves nothing";
  int tellings = 0;
  for (int n = 0; n < operations; ++n) {
    store_->flush();
    const Bytes before = live_bytes();
    faults_.arm(n);
    told = false;
    const int struck = faults_.struck();
    step(*store_, told);
    EXPECT_TRUE(!told || faults_.struck() > struck) << "operation " << n;
    tellings += told ? 1 : 0;
    faults_.disarm();
    store_->flush();
    EXPECT_EQ(live_bytes(), before) << "operation " << n;
    EXPECT_EQ(store_->statistics().count, 0) << "operation " << n;
    EXPECT_EQ(store_->statistics().waiting, Bytes(0)) << "operation " << n;
    EXPECT_TRUE(step(*store_, told)) << "after operation " << n;
  }
  // Nobody need hear of a hint that failed; but of most.
  EXPECT_GE(tellings, operations / 3);
}

TEST_P(StoreContract, AfterFaultsWithoutEndTheNextStepWorks) {
  for (const int n : {0, 1, 5, 13}) {
    bool told = false;
    faults_.arm(n, /*forever=*/true);
    step(*store_, told);
    faults_.disarm();
    EXPECT_TRUE(step(*store_, told)) << n;
  }
}

}  // namespace
}  // namespace reprise
