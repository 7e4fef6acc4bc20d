// Contents and versions of tensors, kept and put back.
#include "libtorch/memory/kept_memory.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <vector>

namespace reprise::libtorch {
namespace {

bool knows(KeptMemory& kept, const at::Tensor& tensor) {
  return kept.touch(*tensor.storage().unsafeGetStorageImpl());
}

TEST(KeptMemory, ContentsAndVersionComeBack) {
  const at::Tensor tensor = torch::arange(6);
  KeptMemory kept;
  kept.keep(tensor);
  const auto version = tensor._version();
  for (int i = 0; i < 2; ++i) {
    tensor.add_(1);
    kept.keep(tensor);  // what is kept stays
    tensor.mul_(3);
    kept.put_back();
    EXPECT_TRUE(tensor.equal(torch::arange(6)));
    EXPECT_EQ(tensor._version(), version);
  }
}

TEST(KeptMemory, EveryCounterOfASharedMemoryComesBack) {
  const at::Tensor tensor = torch::zeros({4});
  const at::Tensor other = tensor.data();  // counts for itself
  KeptMemory kept;
  kept.keep(tensor);
  kept.keep(other.narrow(0, 1, 2));
  tensor.add_(1);
  other.add_(1);
  other.add_(1);
  kept.put_back();
  EXPECT_EQ(tensor._version(), 0);
  EXPECT_EQ(other._version(), 0);
  EXPECT_TRUE(tensor.eq(0).all().item<bool>());
}

TEST(KeptMemory, OnlyWhatTheTensorCoversIsKept) {
  const at::Tensor whole = torch::zeros({100, 1000});
  const Bytes before = live_bytes();
  KeptMemory kept;
  kept.keep(whole.select(0, 7));
  EXPECT_LT((live_bytes() - before).count, 3 * 4000);
  whole.fill_(1);
  kept.put_back();
  EXPECT_EQ(whole.sum().item<float>(), 99'000);
  EXPECT_EQ(whole.select(0, 7).sum().item<float>(), 0);
}

TEST(KeptMemory, AVersionAloneComesBackAlone) {
  const at::Tensor tensor = torch::zeros({4});
  KeptMemory kept;
  kept.keep_version(tensor);
  tensor.add_(1);
  kept.put_back();
  EXPECT_EQ(tensor._version(), 0);
  EXPECT_TRUE(tensor.eq(1).all().item<bool>());
  EXPECT_TRUE(knows(kept, tensor));
}

TEST(KeptMemory, TheSameIsKeptAsItIsNow) {
  const at::Tensor a = torch::zeros({4});
  const at::Tensor b = torch::zeros({4});
  KeptMemory before;
  before.keep(a.narrow(0, 0, 2));
  before.keep_version(b);
  a.add_(1);
  b.add_(1);
  KeptMemory now;
  now.keep_same(before);
  before.put_back();
  EXPECT_TRUE(a.equal(torch::tensor({0.f, 0.f, 1.f, 1.f})));
  now.put_back();
  EXPECT_TRUE(a.eq(1).all().item<bool>());
  EXPECT_EQ(a._version(), 1);
  EXPECT_EQ(b._version(), 1);
}

TEST(KeptMemory, StoragesThatAreGoneAreForgotten) {
  KeptMemory kept;
  const at::Tensor stays = torch::zeros({4});
  kept.keep(stays);
  {
    const at::Tensor goes = torch::zeros({4});
    kept.keep(goes);
  }
  kept.put_back();
  kept.drop_dead();
  EXPECT_FALSE(kept.empty());
  EXPECT_TRUE(knows(kept, stays));
}

TEST(KeptMemory, WhatIsNotAskedForAgainIsDropped) {
  const at::Tensor a = torch::zeros({4}), b = torch::zeros({4}), c = torch::zeros({4});
  KeptMemory kept;
  kept.keep(a, 1);
  kept.keep(b, 2);
  kept.keep_version(c);
  kept.keep(b, 7);
  KeptMemory again;
  again.keep_same(kept);
  EXPECT_FALSE(kept.drop_untouched(again, 1)) << "nothing was expected so early";
  EXPECT_TRUE(knows(again, a));
  EXPECT_FALSE(kept.drop_untouched(again, 2));
  EXPECT_TRUE(kept.drop_untouched(again, 3));
  EXPECT_TRUE(knows(kept, a));
  EXPECT_FALSE(knows(kept, b));
  EXPECT_TRUE(knows(kept, c));
}

TEST(KeptMemory, AStorageThatWasMadeSmallerGetsWhatItHasRoomFor) {
  const at::Tensor tensor = torch::ones({100});
  KeptMemory kept;
  kept.keep(tensor);
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const at::Tensor small = torch::zeros({4});
  storage.set_data_ptr(torch::zeros({4}).storage().unsafeGetStorageImpl()->set_data_ptr({}));
  storage.set_nbytes(16);
  kept.put_back();
  EXPECT_EQ(tensor.narrow(0, 0, 4).sum().item<float>(), 4);
}

TEST(KeptMemory, TensorsWithoutElementsAndOfInferenceModeAreKept) {
  const c10::InferenceMode inference;
  const at::Tensor tensor = torch::zeros({4});
  KeptMemory kept;
  kept.keep(tensor);
  kept.keep(torch::zeros({0}));
  tensor.add_(1);
  kept.put_back();
  EXPECT_TRUE(tensor.eq(0).all().item<bool>());
}

// Slices in any order, with writes between: each byte comes back as it was when it was first kept.
RC_GTEST_PROP(KeptMemoryProperty, OverlappingSlicesComeBackAsTheyFirstWere, ()) {
  const at::Tensor tensor = torch::arange(40);
  std::vector<std::int64_t> expected(40, -1);
  KeptMemory kept;
  const auto slices = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 39), rc::gen::inRange(1, 20)));
  for (const auto& [start, size] : slices) {
    const int length = std::min(size, 40 - start);
    for (int i = start; i < start + length; ++i) {
      auto& first = expected[static_cast<std::size_t>(i)];
      if (first < 0) first = tensor[i].item<std::int64_t>();
    }
    kept.keep(tensor.narrow(0, start, length));
    tensor.add_(100);
  }
  const at::Tensor now = tensor.clone();
  kept.put_back();
  for (int i = 0; i < 40; ++i) {
    const auto first = expected[static_cast<std::size_t>(i)];
    RC_ASSERT(tensor[i].item<std::int64_t>() == (first < 0 ? now[i].item<std::int64_t>() : first));
  }
}

}  // namespace
}  // namespace reprise::libtorch
