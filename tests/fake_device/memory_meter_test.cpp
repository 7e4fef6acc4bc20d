// Byte counts of an accelerator, read from its allocator's statistics.
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <reprise/error.h>
#include <reprise/memory.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tests/fake_device/fake_device.h"

namespace reprise {
namespace {

using testing_support::allocate_fake;
using testing_support::fake;
using testing_support::set_current_fake_device;

TEST(DeviceMemory, IsWhatTheDevicesAllocatorSays) {
  Bytes before = live_bytes(fake(0));
  std::int64_t count = allocation_count(fake(0));
  auto data = allocate_fake(1000);
  EXPECT_EQ(live_bytes(fake(0)) - before, Bytes(1000));
  EXPECT_EQ(allocation_count(fake(0)) - count, 1);
  data.clear();
  EXPECT_EQ(live_bytes(fake(0)), before);
  EXPECT_EQ(allocation_count(fake(0)) - count, 1);
}

TEST(DeviceMemory, IsCountedForEachDeviceAlone) {
  PeakScope scope_0(fake(0));
  PeakScope scope_1(fake(1));
  Bytes cpu = live_bytes();
  auto data = allocate_fake(500, 1);
  EXPECT_EQ(scope_0.peak_above_start(), Bytes(0));
  EXPECT_EQ(scope_1.peak_above_start(), Bytes(500));
  EXPECT_EQ(live_bytes(), cpu);
}

TEST(DeviceMemory, OfADeviceWithoutIndexIsTheCurrentOnes) {
  auto data = allocate_fake(77, 3);
  set_current_fake_device(3);
  EXPECT_EQ(live_bytes(c10::Device("fake")), live_bytes(fake(3)));
  PeakScope scope(c10::Device("fake"));
  set_current_fake_device(0);
  auto more = allocate_fake(11, 3);
  EXPECT_EQ(scope.peak_above_start(), Bytes(11)) << "the scope stays with its device";
}

TEST(DeviceMemory, ScopesOverlapWithoutDisturbingEachOtherOrTheProcess) {
  auto first = std::make_unique<PeakScope>(fake(2));
  allocate_fake(900, 2);
  Bytes process_peak = peak_bytes(fake(2));
  PeakScope second(fake(2));
  allocate_fake(100, 2);
  EXPECT_EQ(first->peak_above_start(), Bytes(900));
  first.reset();
  EXPECT_EQ(second.peak_above_start(), Bytes(100));
  EXPECT_EQ(peak_bytes(fake(2)), process_peak);
}

TEST(DeviceMemory, PeakCountsFromTheStartOfTheProcess) {
  allocate_fake(4444, 5);
  PeakScope first_use_of_this_device(fake(5));
  EXPECT_EQ(peak_bytes(fake(5)), Bytes(4444));
}

TEST(DeviceMemory, NamesADeviceBeyondTheLastAndWhatThereIs) {
  for (const char* name : {"fake:9", "cuda:0"}) {
    std::string message;
    try {
      live_bytes(c10::Device(name));
    } catch (const UsageError& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("device " + std::string(name)), std::string::npos) << message;
    EXPECT_NE(message.find("cpu and fake:0 to fake:7 are present"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace reprise
