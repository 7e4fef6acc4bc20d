#include "tests/fake_device/fake_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "tests/fake_device/fake_device.h"

namespace reprise::testing_support {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
constexpr auto kAggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

struct Block {
  std::int64_t bytes;
  c10::DeviceIndex device;
  c10::StreamId stream;
  // The last kernels of other streams that used it, and the last one that wrote to it.
  std::map<c10::StreamId, std::uint64_t> used;
  Point written;
  std::vector<c10::StreamId> named;
};

struct State {
  struct Device {
    DeviceStats stats;
    std::int64_t capacity = FakeMemory::kNoEnd;
    std::vector<c10::StreamId> named;
  };
  std::array<Device, kFakeDevices> devices;
  std::unordered_map<const void*, Block> blocks;
  // Free memory: of a device, for a stream, of a size; and what streams have to come to before.
  struct Free {
    void* data;
    std::vector<Point> after;
  };
  std::multimap<std::tuple<c10::DeviceIndex, c10::StreamId, std::int64_t>, Free> cache;
  std::int64_t piece = 1;
  std::vector<std::string> hazards;
  std::int64_t emptied = 0;
  std::int64_t out_of_memory = 0;

  Device& of(c10::DeviceIndex device) { return devices.at(static_cast<std::size_t>(device)); }
};

State& state() {
  static auto* state = new State;
  return *state;
}

auto locked() { return std::unique_lock(FakeStreams::mutex()); }

void* take(c10::DeviceIndex device, c10::StreamId stream, std::int64_t bytes) {
  State& all = state();
  auto [from, to] = all.cache.equal_range({device, stream, bytes});
  for (; from != to; ++from) {
    const auto is_reached = [](Point point) {
      return FakeStreams::of_stream(point.stream).is_reached(point);
    };
    if (!std::ranges::all_of(from->second.after, is_reached)) continue;
    void* const data = from->second.data;
    all.cache.erase(from);
    return data;
  }
  State::Device& of = all.of(device);
  auto& reserved = of.stats.reserved_bytes[kAggregate];
  if (bytes > of.capacity - reserved.current) {
    ++all.out_of_memory;
    ++of.stats.num_ooms;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "fake:", static_cast<int>(device),
                     " is out of memory: ", bytes, " bytes were asked for");
  }
  reserved.increase(static_cast<std::size_t>(bytes));
  // The CPU's memory is aligned so, and the last bits of products depend on it.
  constexpr std::int64_t kAlignment = 64;
  const std::int64_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return std::aligned_alloc(kAlignment, static_cast<std::size_t>(whole));
}

void release(void* data) {
  const auto lock = locked();
  State& all = state();
  auto node = all.blocks.extract(data);
  if (node.empty()) return;
  const Block& block = node.mapped();
  DeviceStats& stats = all.of(block.device).stats;
  stats.allocated_bytes[kAggregate].decrease(static_cast<std::size_t>(block.bytes));
  stats.allocation[kAggregate].decrease(1);
  State::Free free{data, {}};
  for (const auto& [stream, count] : block.used) {
    const bool is_named = std::ranges::count(block.named, stream) != 0;
    if (is_named) free.after.push_back(FakeStreams::of_stream(stream).mark(stream).point);
    const auto& own = block.stream;
    if (is_named || FakeStreams::of_stream(own).has_waited(own, {stream, count})) continue;
    all.hazards.push_back("memory of stream " + std::to_string(block.stream) +
                          " is freed while stream " + std::to_string(stream) + " uses it");
  }
  all.cache.emplace(std::tuple(block.device, block.stream, block.bytes), std::move(free));
}

class FakeAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t asked) override {
    const auto lock = locked();
    State& all = state();
    const c10::Device device = c10::impl::getDeviceGuardImpl(c10::kPrivateUse1)->getDevice();
    if (asked == 0) return {nullptr, nullptr, &release, device};
    const auto bytes = (static_cast<std::int64_t>(asked) + all.piece - 1) / all.piece * all.piece;
    const c10::StreamId stream = current_fake_stream(device.index()).id();
    void* const data = take(device.index(), stream, bytes);
    std::memset(data, 0xA5, static_cast<std::size_t>(bytes));
    DeviceStats& stats = all.of(device.index()).stats;
    stats.allocated_bytes[kAggregate].increase(static_cast<std::size_t>(bytes));
    stats.allocation[kAggregate].increase(1);
    all.blocks[data] = {bytes, device.index(), stream, {}, {stream, 0}, {}};
    return {data, data, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    const auto lock = locked();
    State& all = state();
    ++all.emptied;
    std::erase_if(all.cache, [&](const auto& entry) {
      const auto device = std::get<0>(entry.first);
      const auto is_reached = [](Point p) {
        return FakeStreams::of_stream(p.stream).is_reached(p);
      };
      if (!std::ranges::all_of(entry.second.after, is_reached)) return false;
      all.of(device).stats.reserved_bytes[kAggregate].decrease(
          static_cast<std::size_t>(std::get<2>(entry.first)));
      std::free(entry.second.data);
      return true;
    });
  }
  // As CUDA's, which knows memory by its deleter.
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    const auto lock = locked();
    if (memory.get() == nullptr || memory.get_deleter() != &release) return;
    Block& block = state().blocks.at(memory.get());
    if (block.stream == stream.id()) return;
    if (std::ranges::count(block.named, stream.id()) == 0) block.named.push_back(stream.id());
    state().of(block.device).named.push_back(stream.id());
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto lock = locked();
    return state().of(device).stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const auto lock = locked();
    state().of(device).stats.allocation[kAggregate].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const auto lock = locked();
    state().of(device).stats.allocated_bytes[kAggregate].reset_peak();
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto lock = locked();
    const auto& of = state().of(device);
    const std::int64_t reserved = of.stats.reserved_bytes[kAggregate].current;
    return {static_cast<std::size_t>(of.capacity - reserved),
            static_cast<std::size_t>(of.capacity)};
  }
};

const bool memory_registered = [] {
  static FakeAllocator allocator;
  c10::SetAllocator(c10::kPrivateUse1, &allocator);
  return true;
}();

}  // namespace

void FakeMemory::set_capacity(std::int64_t bytes, c10::DeviceIndex device) {
  const auto lock = locked();
  state().of(device).capacity = bytes;
}

void FakeMemory::set_piece(std::int64_t bytes) { state().piece = bytes; }

void FakeMemory::used(const void* data, Point point, bool writes) {
  const auto lock = locked();
  const auto found = state().blocks.find(data);
  if (found == state().blocks.end()) return;
  Block& block = found->second;
  if (block.written.count != 0 &&
      !FakeStreams::of_stream(point.stream).has_waited(point.stream, block.written)) {
    state().hazards.push_back("stream " + std::to_string(point.stream) + " uses what stream " +
                              std::to_string(block.written.stream) + " may not have written yet");
  }
  if (point.stream != block.stream) block.used[point.stream] = point.count;
  if (writes) block.written = point;
}

std::vector<c10::StreamId> FakeMemory::named(c10::DeviceIndex device) {
  const auto lock = locked();
  return state().of(device).named;
}

void FakeMemory::forget_named() {
  const auto lock = locked();
  for (auto& device : state().devices) device.named.clear();
}

std::vector<std::string> FakeMemory::hazards() {
  const auto lock = locked();
  return std::exchange(state().hazards, {});
}

std::int64_t FakeMemory::times_emptied() { return state().emptied; }
std::int64_t FakeMemory::times_out_of_memory() { return state().out_of_memory; }

}  // namespace reprise::testing_support
