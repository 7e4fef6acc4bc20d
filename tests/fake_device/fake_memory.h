// The fake accelerator's memory: the host's, handed out by an allocator that keeps statistics and a
// cache as caching allocators do, has an end, and watches who uses what.
//
// What is handed out holds garbage. Freed memory goes back to the stream that it was allocated for,
// after the streams that recordStream() named for it have come so far; and only emptyCache() gives
// it back to the device.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/fake_device/fake_streams.h"

namespace reprise::testing_support {

struct FakeMemory {
  // Of a device: what it has, and the pieces in which it hands it out.
  static void set_capacity(std::int64_t bytes, c10::DeviceIndex device = 0);
  static void set_piece(std::int64_t bytes);
  static constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();

  // A kernel uses the memory at `data`, which the allocator has handed out.
  static void used(const void* data, Point point, bool writes);

  // The streams that were named for any memory of the device, in order.
  static std::vector<c10::StreamId> named(c10::DeviceIndex device = 0);
  static void forget_named();
  // What a real device would leave to chance, in words; and forgets it.
  static std::vector<std::string> hazards();
  static std::int64_t times_emptied();
  static std::int64_t times_out_of_memory();
};

}  // namespace reprise::testing_support
