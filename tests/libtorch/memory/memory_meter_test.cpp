// The CPU's byte counts: exact against malloc, whichever thread allocates or frees, and with
// LibTorch's profiler still seeing every allocation. (Accelerators: tests/fake_device.)
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "libtorch/memory/counting_allocator.h"

namespace reprise {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// A tensor without operators behind it, so that nothing but its own storage is allocated.
at::Tensor bytes_tensor(std::int64_t bytes) { return at::empty({bytes}, at::kByte); }

Bytes usable(const at::Tensor& tensor) {
  return Bytes(static_cast<std::int64_t>(malloc_usable_size(tensor.storage().mutable_data())));
}

TEST(MemoryMeter, IsInstalledWhenTheLibraryIsLoaded) {
  EXPECT_TRUE(libtorch::counting_allocator_is_installed());
}

TEST(MemoryMeter, CountsWhatMallocHandsOutAndTakesBack) {
  for (std::int64_t size : {1L, 63L, 4096L, 4 * kMiB + 1}) {
    Bytes before = live_bytes();
    at::Tensor tensor = bytes_tensor(size);
    EXPECT_EQ(live_bytes() - before, usable(tensor));
    EXPECT_GE(usable(tensor), Bytes(size));
    tensor.reset();
    EXPECT_EQ(live_bytes(), before);
  }
}

TEST(MemoryMeter, CountsAllocationsButNotEmptyOnes) {
  std::int64_t before = allocation_count();
  at::Tensor one = bytes_tensor(1);
  at::Tensor none = bytes_tensor(0);
  EXPECT_EQ(allocation_count() - before, 1);
}

TEST(MemoryMeter, CountsAStorageOnceHoweverManyViewsItHas) {
  at::Tensor tensor = bytes_tensor(kMiB);
  Bytes before = live_bytes();
  at::Tensor view = tensor.view({-1, 16}).t();
  at::Tensor alias = tensor.detach();
  EXPECT_EQ(live_bytes(), before);
}

TEST(MemoryMeter, FollowsAStorageThatIsResized) {
  Bytes before = live_bytes();
  at::Tensor tensor = bytes_tensor(16);
  tensor.resize_({kMiB});
  EXPECT_EQ(live_bytes() - before, usable(tensor));
}

TEST(MemoryMeter, CountsBytesThatAnotherThreadFrees) {
  Bytes before = live_bytes();
  std::thread([tensor = bytes_tensor(kMiB)]() mutable { tensor.reset(); }).join();
  EXPECT_EQ(live_bytes(), before);
}

TEST(MemoryMeter, LosesNoByteBetweenThreads) {
  Bytes before = live_bytes();
  std::int64_t count = allocation_count();
  constexpr int kThreads = 4;
  constexpr int kRounds = 5000;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([i] {
        for (int round = 0; round < kRounds; ++round) bytes_tensor(64 + i * 1000 + round % 97);
      });
    }
  }
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(allocation_count() - count, kThreads * kRounds);
}

TEST(MemoryMeter, KeepsAlignmentAndTheRawInterfaceOfLibTorchsAllocator) {
  c10::Allocator* allocator = c10::GetAllocator(c10::kCPU);
  Bytes before = live_bytes();
  void* data = allocator->raw_allocate(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
  EXPECT_GT(live_bytes(), before);
  std::memset(data, 7, 100);
  c10::DataPtr copy = allocator->clone(data, 100);
  EXPECT_EQ(std::memcmp(copy.get(), data, 100), 0);
  EXPECT_TRUE(allocator->is_simple_data_ptr(copy));
  allocator->raw_deallocate(data);
  copy.clear();
  EXPECT_EQ(live_bytes(), before);
}

TEST(MemoryMeter, IsUnchangedByAnAllocationThatFails) {
  Bytes before = live_bytes();
  std::int64_t count = allocation_count();
  // So many that LibTorch refuses them before it asks malloc, which sanitizers would not let pass.
  constexpr std::size_t kTooMany = std::size_t{1} << 63;
  EXPECT_THROW(c10::GetAllocator(c10::kCPU)->allocate(kTooMany), c10::Error);
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(allocation_count(), count);
}

TEST(MemoryMeter, DoesNotCountTensorsOfTheStockAllocator) {
  Bytes before = live_bytes();
  c10::DataPtr stock = c10::GetDefaultCPUAllocator()->allocate(kMiB);
  EXPECT_EQ(live_bytes(), before);
  stock.clear();
  EXPECT_EQ(live_bytes(), before);
}

TEST(MemoryMeter, RefusesFiguresWhileTheProgramUsesAnAllocatorOfItsOwn) {
  c10::Allocator* ours = c10::GetAllocator(c10::kCPU);
  c10::SetAllocator(c10::kCPU, c10::GetDefaultCPUAllocator(), /*priority=*/1);
  std::string message;
  try {
    live_bytes();
  } catch (const UsageError& error) {
    message = error.what();
  }
  EXPECT_THROW(PeakScope(), UsageError);
  c10::SetAllocator(c10::kCPU, ours, /*priority=*/1);
  EXPECT_NE(message.find("memory on device cpu is not counted"), std::string::npos) << message;
  EXPECT_NO_THROW(live_bytes());
}

TEST(MemoryMeter, InstallsItselfAgainOverTheStockAllocatorOnly) {
  c10::Allocator* ours = c10::GetAllocator(c10::kCPU);
  libtorch::install_counting_allocator();
  EXPECT_EQ(c10::GetAllocator(c10::kCPU), ours);
  c10::SetAllocator(c10::kCPU, c10::GetDefaultCPUAllocator(), /*priority=*/1);
  libtorch::install_counting_allocator();
  EXPECT_EQ(c10::GetAllocator(c10::kCPU), ours);
  struct Foreign final : c10::Allocator {
    c10::DataPtr allocate(std::size_t) override { return {}; }
    void copy_data(void*, const void*, std::size_t) const override {}
  };
  static Foreign foreign;
  c10::SetAllocator(c10::kCPU, &foreign, /*priority=*/1);
  libtorch::install_counting_allocator();
  c10::Allocator* left = c10::GetAllocator(c10::kCPU);
  c10::SetAllocator(c10::kCPU, ours, /*priority=*/1);
  EXPECT_EQ(left, &foreign);
}

TEST(MemoryMeter, NamesTheAbsentDeviceAndWhatThereIs) {
  for (c10::Device device : {c10::Device("xpu:3"), c10::Device("meta")}) {
    std::string message;
    try {
      live_bytes(device);
    } catch (const UsageError& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("on device " + device.str()), std::string::npos) << message;
    EXPECT_NE(message.find("cpu"), std::string::npos) << message;
    EXPECT_THROW(peak_bytes(device), UsageError);
    EXPECT_THROW(allocation_count(device), UsageError);
    EXPECT_THROW(PeakScope scope(device), UsageError);
  }
}

TEST(PeakScope, MeasuresTheMostAliveAtOnce) {
  at::Tensor kept = bytes_tensor(kMiB);
  PeakScope scope;
  EXPECT_EQ(scope.peak_above_start(), Bytes(0));
  Bytes peak;
  {
    at::Tensor a = bytes_tensor(kMiB);
    at::Tensor b = bytes_tensor(2 * kMiB);
    peak = usable(a) + usable(b);
  }
  at::Tensor c = bytes_tensor(kMiB);
  EXPECT_EQ(scope.peak_above_start(), peak);
  EXPECT_EQ(scope.peak(), scope.live_at_start() + peak);
  EXPECT_GE(peak_bytes(), scope.peak());
}

TEST(PeakScope, NestedAndOverlappingScopesEachSeeTheirOwnSpan) {
  auto first = std::make_unique<PeakScope>();
  bytes_tensor(8 * kMiB);
  Bytes process_peak = peak_bytes();
  PeakScope second;
  bytes_tensor(kMiB);
  EXPECT_GE(first->peak_above_start(), MiB(8));
  EXPECT_LT(first->peak_above_start(), MiB(8.1));
  first.reset();
  EXPECT_GE(second.peak_above_start(), MiB(1));
  EXPECT_LT(second.peak_above_start(), MiB(1.1));
  EXPECT_EQ(peak_bytes(), process_peak);
}

TEST(PeakScope, CountsTheAllocationsOfEveryThread) {
  PeakScope scope;
  std::thread([] { bytes_tensor(4 * kMiB); }).join();
  EXPECT_GE(scope.peak_above_start(), MiB(4));
}

TEST(PeakScope, IsExactWhileOtherThreadsOpenScopes) {
  std::atomic<bool> stop = false;
  std::thread opener([&] {
    while (!stop) PeakScope restarts_the_mark;
  });
  for (int round = 0; round < 2000; ++round) {
    PeakScope scope;
    Bytes size;
    {
      at::Tensor tensor = bytes_tensor(1000 + round);
      size = usable(tensor);
    }
    ASSERT_EQ(scope.peak_above_start(), size);
  }
  stop = true;
  opener.join();
}

TEST(PeakScope, MeasuresABackwardPass) {
  auto weight = torch::randn({256, 256}, torch::requires_grad());
  auto x = torch::randn({64, 256});
  PeakScope scope;
  auto loss = x.mm(weight).relu().mm(weight).sum();
  Bytes forward = scope.peak_above_start();
  loss.backward();
  EXPECT_GE(forward, Bytes(3 * 64 * 256 * 4));
  EXPECT_GT(scope.peak_above_start(), forward);
}

// The bytes of every [memory] event that the profiler records while `f` runs, negative for a
// release.
template <class F>
std::multiset<std::int64_t> profiled_memory_events(F f) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                               /*report_input_shapes=*/false,
                                               /*profile_memory=*/true);
  profiler::prepareProfiler(config, {ActivityType::CPU});
  profiler::enableProfiler(config, {ActivityType::CPU});
  f();
  std::multiset<std::int64_t> sizes;
  auto result = profiler::disableProfiler();
  for (const auto& event : result->events()) {
    if (event.name() == "[memory]") sizes.insert(event.nBytes());
  }
  return sizes;
}

TEST(MemoryMeter, LeavesTheProfilersMemoryEventsInPlace) {
  auto sizes = profiled_memory_events([] { bytes_tensor(123'456); });
  EXPECT_EQ(sizes.count(123'456), 1u);
  EXPECT_EQ(sizes.count(-123'456), 1u);
}

}  // namespace
}  // namespace reprise
