// A managed storage may die at any moment, on any thread: its manager is told once, and never while
// somebody is at work under the lock.

#include "libtorch/memory/managed_memory.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "libtorch/memory/outside_writer.h"

namespace reprise::libtorch {
namespace {

using Lock = std::lock_guard<LimitMutex>;

struct TestManager final : MemoryManager {
  explicit TestManager(const at::Tensor& tensor)
      : storage(tensor.storage().unsafeGetStorageImpl()) {
    const Lock lock(limit_mutex());
    ManagedMemory::manage(*storage, *this);
  }
  void hold() override { ++holds; }
  void release_hold() noexcept override { --holds; }
  void before_write() override {}
  void released(c10::DataPtr memory) noexcept override {
    had_memory = memory.get() != nullptr;
    ++told;
  }

  c10::StorageImpl* storage;
  bool had_memory = false;
  std::atomic<int> told{0};
  int holds = 0;
};

TEST(OutsideWriter, IsOnAStorageUntilTheLastOneHasGone) {
  const at::Tensor tensor = at::empty({8}), other = at::empty({8});
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  {
    OutsideWriter first(tensor.storage());
    {
      const OutsideWriter second(tensor.storage());
      const OutsideWriter of_nothing{c10::Storage()};
    }
    EXPECT_TRUE(OutsideWriter::is_on(storage));
    EXPECT_FALSE(OutsideWriter::is_on(*other.storage().unsafeGetStorageImpl()));
    OutsideWriter moved(std::move(first));
    EXPECT_TRUE(OutsideWriter::is_on(storage));
    moved = OutsideWriter();
    EXPECT_FALSE(OutsideWriter::is_on(storage));
  }
  EXPECT_FALSE(OutsideWriter::is_on(storage));
}

TEST(ManagedMemory, TheManagerIsToldAtTheEndWhereItsOwnReferenceWasTheLast) {
  at::Tensor tensor = at::empty({8});
  TestManager manager(tensor);
  {
    const Lock lock(limit_mutex());
    {
      const Lock inner(limit_mutex());
      const ManagedMemory::Reference reference(manager);
      ASSERT_FALSE(reference.is_too_late());
      EXPECT_EQ(manager.storage->nbytes(), 32U);
      tensor.reset();
    }
    EXPECT_TRUE(ManagedMemory::is_dying(manager));
    EXPECT_EQ(manager.told, 0);
    // The manager's part is there until then.
    EXPECT_FALSE(ManagedMemory::let_go(*manager.storage, manager));
    c10::DataPtr memory = ManagedMemory::hollow(*manager.storage, manager, "gone");
    EXPECT_NE(memory.get(), nullptr);
    ManagedMemory::fill(*manager.storage, manager, std::move(memory));
    EXPECT_EQ(manager.told, 0);
  }
  EXPECT_EQ(manager.told, 1);
  EXPECT_TRUE(manager.had_memory);
}

TEST(ManagedMemory, UseCountsStayAsTheyAre) {
  const at::Tensor tensor = at::empty({8});
  TestManager manager(tensor);
  const Lock lock(limit_mutex());
  EXPECT_EQ(tensor.storage().use_count(), 1);
  c10::DataPtr memory = ManagedMemory::hollow(*manager.storage, manager, "gone");
  EXPECT_EQ(tensor.storage().use_count(), 1);
  ManagedMemory::fill(*manager.storage, manager, std::move(memory));
  EXPECT_EQ(tensor.storage().use_count(), 1);
  EXPECT_TRUE(ManagedMemory::let_go(*manager.storage, manager));
  EXPECT_EQ(manager.told, 0);
}

TEST(ManagedMemory, StoragesDieWhileTheirMemoryIsMoved) {
  for (int i = 0; i < 3000; ++i) {
    at::Tensor tensor = at::empty({8});
    TestManager manager(tensor);
    std::atomic<bool> go{false};
    std::thread other([&] {
      while (!go) std::this_thread::yield();
      tensor.reset();
    });
    bool was_let_go = false;
    {
      const Lock lock(limit_mutex());
      go = true;
      for (int k = 0; k < i % 20; ++k) {
        c10::DataPtr memory = ManagedMemory::hollow(*manager.storage, manager, "gone");
        ASSERT_NE(memory.get(), nullptr);
        ManagedMemory::fill(*manager.storage, manager, std::move(memory));
      }
      if (i % 2 == 0) was_let_go = ManagedMemory::let_go(*manager.storage, manager);
    }
    other.join();
    ASSERT_EQ(manager.told, was_let_go ? 0 : 1);
    ASSERT_TRUE(was_let_go || manager.had_memory);
  }
}

TEST(HeldMemory, KeepsNoStorageAliveThatOwnsIt) {
  for (const bool dies_first : {true, false}) {
    at::Tensor tensor = at::empty({8});
    TestManager manager(tensor);
    HeldMemory held(tensor);
    held.let_storage_die();
    HeldMemory moved = std::move(held);
    held.reset();
    EXPECT_EQ(manager.holds, 1);
    if (dies_first) {
      tensor.reset();
      EXPECT_EQ(manager.told, 1);
    }
    moved.reset();
    EXPECT_EQ(manager.holds, dies_first ? 1 : 0);
    tensor.reset();
    EXPECT_EQ(manager.told, 1);
  }
}

TEST(LimitMutex, WhileItIsLentAllocationsAndTheLenderTakeTheirTurns) {
  std::atomic<int> operations{0}, allocations{0};
  const auto operate = [&] {
    const Lock lock(limit_mutex());
    ++operations;
  };
  const auto allocate = [&] {
    limit_mutex().lock_to_allocate();
    const Lock inner(limit_mutex());
    ++allocations;
    limit_mutex().unlock();
  };
  std::thread waiting;
  {
    const Lock lock(limit_mutex());
    const Lock again(limit_mutex());
    const LimitLoan loan;
    waiting = std::thread(operate);
    std::thread(allocate).join();
    EXPECT_EQ(allocations, 1);
    const Lock mine(limit_mutex());
    {
      const LimitLoan inner;
      std::thread(allocate).join();
    }
    EXPECT_EQ(allocations, 2);
    EXPECT_EQ(operations, 0);
  }
  waiting.join();
  EXPECT_EQ(operations, 1);
}

}  // namespace
}  // namespace reprise::libtorch
