#include "tests/fake_device/fake_streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libtorch/base/versions.h"
#include "tests/fake_device/fake_device.h"

namespace reprise::testing_support {

bool FakeStreams::has_events = true;
bool FakeStreams::is_late = false;
std::optional<c10::Stream> FakeStreams::recorded;
double FakeStreams::slowness = 1;

std::recursive_mutex& FakeStreams::mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

FakeStreams& FakeStreams::of(c10::DeviceIndex device) {
  static auto* all = new std::array<FakeStreams, kFakeDevices>;
  return all->at(static_cast<std::size_t>(device));
}

c10::StreamId FakeStreams::fresh() {
  const std::lock_guard lock(mutex());
  return ++last_;
}

Point FakeStreams::give(c10::StreamId id, double seconds) {
  const std::lock_guard lock(mutex());
  Stream& stream = streams_[id];
  stream.clock += slowness * seconds;
  ++stream.given;
  if (!is_late) stream.done = stream.given;
  return {id, stream.given};
}

bool FakeStreams::has_waited(c10::StreamId stream, Point point) {
  const std::lock_guard lock(mutex());
  return stream == point.stream || streams_[stream].waited[point.stream] >= point.count;
}

bool FakeStreams::is_reached(Point point) {
  const std::lock_guard lock(mutex());
  return streams_[point.stream].done >= point.count;
}

FakeStreams::Mark FakeStreams::mark(c10::StreamId id) {
  const std::lock_guard lock(mutex());
  const Stream& stream = streams_[id];
  return {{id, stream.given}, stream.clock, stream.waited};
}

void FakeStreams::wait(c10::StreamId id, const Mark& mark) {
  const std::lock_guard lock(mutex());
  auto& waited = streams_[id].waited;
  const auto raise = [&](c10::StreamId other, std::uint64_t count) {
    waited[other] = std::max(waited[other], count);
  };
  raise(mark.point.stream, mark.point.count);
  for (const auto& [other, count] : mark.waited) raise(other, count);
}

void FakeStreams::synchronize() {
  const std::lock_guard lock(mutex());
  ++synchronizations_;
  get_there();
  for (auto& [id, stream] : streams_) {
    for (const auto& [other_id, other] : streams_) stream.waited[other_id] = other.given;
  }
}

void FakeStreams::get_there() {
  const std::lock_guard lock(mutex());
  for (auto& [id, stream] : streams_) stream.done = stream.given;
}

std::atomic<std::int64_t> FakeEvents::alive = 0;
std::atomic<std::int64_t> FakeEvents::recorded = 0;
std::atomic<std::int64_t> FakeEvents::queried = 0;

namespace {

std::atomic<FakeEvents::Use> failing = FakeEvents::Use::kNone;
std::atomic<std::int64_t> works_still = 0;

void fail_if_told(FakeEvents::Use use) {
  TORCH_CHECK(failing != use || --works_still >= 0, "the fake device's events fail");
}

}  // namespace

void FakeEvents::fail(Use use, std::int64_t first) {
  works_still = first;
  failing = use;
}

namespace {

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kFakeDevices> current_streams = [] {
  std::array<c10::StreamId, kFakeDevices> streams{};
  for (c10::DeviceIndex i = 0; i < kFakeDevices; ++i) {
    streams.at(static_cast<std::size_t>(i)) = FakeStreams::default_stream(i);
  }
  return streams;
}();

struct FakeEvent {
  explicit FakeEvent(c10::DeviceIndex of) : device(of) { ++FakeEvents::alive; }
  ~FakeEvent() { --FakeEvents::alive; }
  FakeEvent(const FakeEvent&) = delete;
  FakeEvent& operator=(const FakeEvent&) = delete;

  const c10::DeviceIndex device;
  FakeStreams::Mark mark;
};

class FakeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return fake(current_device); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < kFakeDevices, "no ", device);
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(device, current(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device, FakeStreams::default_stream(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const c10::DeviceIndex index = index_of(device);
    return stream_of(device, FakeStreams::default_stream(index) + FakeStreams::of(index).fresh());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(stream.device(), std::exchange(current(stream.device()), stream.id()));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    TORCH_CHECK(FakeStreams::has_events, "Backend doesn't support events.");
    fail_if_told(*event == nullptr ? FakeEvents::Use::kMake : FakeEvents::Use::kRecord);
    if (*event == nullptr) *event = new FakeEvent(stream.device_index());
    static_cast<FakeEvent*>(*event)->mark =
        FakeStreams::of(stream.device_index()).mark(stream.id());
    ++FakeEvents::recorded;
  }
  void block(void* event, const c10::Stream& stream) const override {
    FakeStreams::of(stream.device_index()).wait(stream.id(), of(event).mark);
  }
  bool queryEvent(void* event) const override {
    ++FakeEvents::queried;
    fail_if_told(FakeEvents::Use::kQuery);
    return FakeStreams::of(of(event).device).is_reached(of(event).mark.point);
  }
  void synchronizeEvent(void* event) const override {
    FakeStreams::of(of(event).device).synchronize();
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    fail_if_told(FakeEvents::Use::kElapsed);
    return (of(end).mark.clock - of(start).mark.clock) * 1e3;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  bool queryStream(const c10::Stream& stream) const override {
    auto& streams = FakeStreams::of(stream.device_index());
    return streams.is_reached(streams.mark(stream.id()).point);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    FakeStreams::of(stream.device_index()).synchronize();
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    FakeStreams::of(device).synchronize();
  }
#if REPRISE_TORCH_AT_LEAST(2, 12)
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return FakeStreams::recorded == stream;
  }
#endif
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    c10::getDeviceAllocator(c10::kPrivateUse1)->recordStream(memory, stream);
  }

 private:
  static const FakeEvent& of(void* event) { return *static_cast<const FakeEvent*>(event); }
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
  static c10::StreamId& current(c10::Device device) {
    return current_streams.at(static_cast<std::size_t>(index_of(device)));
  }
  static c10::Stream stream_of(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, fake(index_of(device)), id);
  }
};

const bool streams_registered = [] {
  c10::impl::DeviceGuardImplRegistrar(c10::kPrivateUse1, new FakeGuard);
  return true;
}();

}  // namespace

void set_current_fake_device(int index) { current_device = static_cast<c10::DeviceIndex>(index); }

c10::Stream current_fake_stream(c10::DeviceIndex device) {
  return c10::impl::getDeviceGuardImpl(c10::kPrivateUse1)->getStream(fake(device));
}

c10::Stream new_fake_stream(c10::DeviceIndex device) {
  return c10::impl::getDeviceGuardImpl(c10::kPrivateUse1)->getNewStream(fake(device));
}

}  // namespace reprise::testing_support
