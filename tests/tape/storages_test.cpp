// Storages as arguments, shared until they are written to, moved by the program, and gone.
#include <ATen/Functions.h>
#include <ATen/ops/_lazy_clone.h>
#include <gmock/gmock.h>

#include "libtorch/memory/managed_memory.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::does_the_same_when_all_is_dropped;
using ::testing::HasSubstr;
using testing::leaf;
using testing::same_bits;
using testing::Tensors;

TEST(TapeStorages, AStorageThatIsAnArgumentHasItsBytes) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor z = at::randn({8, 8}).sin();
    Tensor whole = at::empty({0}), part = at::empty({0});
    whole.set_(z.storage());
    part.set_(z.storage(), 8, {2, 3}, {3, 1});
    const Tensor sum = whole.cos().sum() + part.exp().sum();
    z.mul_(2);
    return Tensors{sum, whole + 1, part * 2, z};
  }));
}

TEST(TapeStorages, CopiesOnWriteStayWhatTheyAre) {
  const Tensor before = at::randn({8, 8});
  const Tensor clone = at::_lazy_clone(before);
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    const Tensor h = before.sin();
    Tensor inside = at::_lazy_clone(h);
    const Tensor first = inside.cos() + clone.exp();
    inside.mul_(3);
    Tensor written = at::_lazy_clone(before);
    written.add_(h);
    return Tensors{first, inside, written, h};
  }));
  MemoryBudget budget(GiB(64), testing::paranoid());
  const Tensor other = at::_lazy_clone(before), expected = before.clone();
  Tensor sine;
  {
    auto step = budget.step();
    sine = other.sin();
    other.mul_(3);
    step.finish();
  }
  EXPECT_TRUE(same_bits(sine, expected.sin()));
  EXPECT_TRUE(same_bits(other, expected * 3));
  EXPECT_TRUE(same_bits(before, expected));
}

TEST(TapeStorages, WhetherTensorsShareMemoryIsToldOfHollowOnesToo) {
  const Tensor x = at::randn({8, 8});
  MemoryBudget budget(GiB(64), testing::paranoid());
  auto step = budget.step();
  const Tensor h = x.sin(), row = h.narrow(0, 2, 1), other = x.cos();
  const auto is_hollow = [](const Tensor& tensor) {
    return libtorch::ManagedMemory::manager_of(*tensor.storage().unsafeGetStorageImpl()) !=
               nullptr &&
           tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr;
  };
  ASSERT_TRUE(is_hollow(h) && is_hollow(other));
  EXPECT_TRUE(h.is_alias_of(row));
  EXPECT_FALSE(h.is_alias_of(other));
  EXPECT_FALSE(x.is_alias_of(h));
  EXPECT_TRUE(is_hollow(h)) << "the question reads no bytes";
  step.finish();
}

TEST(TapeStorages, AStepEndsThoughTheProgramHasMovedMemoryBetweenStorages) {
  const Bytes live = live_bytes();
  {
    const Tensor w = at::randn({100, 64});
    MemoryBudget budget(GiB(64), testing::paranoid());
    const Tensor kept = w.clone();
    {
      auto step = budget.step();
      const Tensor n = w.cos();
      const Pin pin(n);
      Tensor moved = at::empty({100, 64});
      moved.copy_(n);
      const Pin also(moved);
      c10::Storage to = kept.storage();
      to.set_data_ptr(moved.storage().set_data_ptr(at::DataPtr(nullptr, c10::kCPU)));
      moved.reset();
      step.finish();
    }
    EXPECT_TRUE(same_bits(kept, w.cos()));
    Tensor sine;
    {
      auto step = budget.step();
      sine = kept.sin();
      step.finish();
    }
    EXPECT_TRUE(same_bits(sine, w.cos().sin()));
  }
  EXPECT_EQ(live_bytes(), live);
}

TEST(TapeStorages, WhatAnEarlierStepGaveUpIsNamedAndDisturbsNoOther) {
  const Tensor w = leaf({100, 64});
  Tensor a, b, c;
  {
    const at::NoGradGuard no_graph;
    MemoryBudget budget(live_bytes() + KB(60));
    auto step = budget.step();
    a = w.sin();
    b = a.cos();
    c = b.exp();
    const Tensor d = c.tanh();
  }
  MemoryBudget budget(GiB(64));
  auto step = budget.step();
  int gone = 0;
  for (Tensor* each : {&a, &b, &c}) {
    const auto use = [&](auto f) {
      try {
        f();
        return std::string();
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
    };
    const std::string read = use([&] { each->mul(2); });
    if (read.empty()) continue;
    ++gone;
    EXPECT_THAT(read, HasSubstr("the bytes of this tensor were dropped by a reprise::"));
    EXPECT_THAT(use([&] { Pin pin(*each); }), HasSubstr("were dropped by a reprise::"));
    EXPECT_THAT(use([&] { each->zero_(); }), HasSubstr("were dropped by a reprise::"));
  }
  EXPECT_GT(gone, 0);
  const Tensor y = w.sin();
  y.sum().backward();
  step.finish();
  EXPECT_TRUE(same_bits(w.grad(), w.detach().cos()));
}

}  // namespace
}  // namespace reprise
