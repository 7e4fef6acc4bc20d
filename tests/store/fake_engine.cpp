#include "tests/store/fake_engine.h"

#include <torch/torch.h>

#include <memory>
#include <stdexcept>

#include "libtorch/memory/managed_memory.h"

namespace reprise::testing {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

class FakeEvent final : public libtorch::DeviceEvent {
 public:
  FakeEvent(std::shared_ptr<FakeEngine::Device> device, c10::StreamId stream)
      : device_(std::move(device)), stream_(stream), point_(device_->given(stream)) {}

  bool reached() override {
    const std::lock_guard lock(device_->mutex);
    return device_->streams[stream_].done >= point_;
  }
  void wait() override {
    const std::lock_guard lock(device_->mutex);
    device_->note("wait", stream_);
    device_->run(stream_, point_);
  }
  void hold_back(c10::Stream stream) override {
    const std::lock_guard lock(device_->mutex);
    device_->note("hold", stream.id());
    device_->give(stream.id(), [device = device_.get(), from = stream_, point = point_] {
      device->run(from, point);
    });
  }

 private:
  const std::shared_ptr<FakeEngine::Device> device_;
  const c10::StreamId stream_;
  const std::size_t point_;
};

}  // namespace

void FakeEngine::Device::note(const std::string& call, c10::StreamId stream) {
  log.push_back(call + " " + std::to_string(stream));
  if (faults.strikes()) throw std::runtime_error("the fake device failed at " + log.back());
  if (at_random) {
    const auto id = static_cast<c10::StreamId>(kToHost + random() % 2);
    if (random() % 2 == 0) run(id, streams[id].done + 1);
  }
}

void FakeEngine::Device::give(c10::StreamId stream, std::function<void()> work) {
  Stream& to = streams[stream];
  to.work.push_back(std::move(work));
  ++to.given;
  // The tests' own operators run at once, so their stream does.
  if (stream == kCurrent) run(stream, to.given);
}

void FakeEngine::Device::run(c10::StreamId stream, std::size_t until) {
  Stream& running = streams[stream];
  while (running.done < until && !running.work.empty()) {
    const std::function<void()> work = std::move(running.work.front());
    running.work.pop_front();
    ++running.done;
    work();
  }
}

void FakeEngine::Device::run_everything() {
  const std::lock_guard lock(mutex);
  for (auto& [id, stream] : streams) run(id, stream.given);
}

std::unique_ptr<libtorch::DeviceEvent> FakeEngine::record(c10::Stream stream) {
  const std::lock_guard lock(device_->mutex);
  device_->note("record", stream.id());
  return std::make_unique<FakeEvent>(device_, stream.id());
}

void FakeEngine::drain(c10::Stream stream) {
  const std::lock_guard lock(device_->mutex);
  device_->run(stream.id(), device_->given(stream.id()));
}

at::Tensor FakeEngine::allocate_host(at::ScalarType dtype, std::int64_t length) {
  const std::lock_guard lock(device_->mutex);
  device_->note("host memory", kCurrent);
  return torch::empty({length}, dtype);
}

at::Tensor FakeEngine::allocate_device(at::ScalarType dtype, std::int64_t length,
                                       c10::Stream stream) {
  const std::lock_guard lock(device_->mutex);
  device_->note("memory", stream.id());
  // Whoever reads it before the copy has run sees this.
  return torch::full({length}, 77, dtype);
}

void FakeEngine::copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) {
  const std::lock_guard lock(device_->mutex);
  device_->note("copy", stream.id());
  const bool own_pool = stream.id() == kToDevice;
  // As memory that a stream was named for: it is not used again before the stream has read it.
  const auto held = std::make_shared<libtorch::HeldMemory>(from);
  device_->give(
      stream.id(),
      [device = device_.get(), own_pool, held, weak_to = to.storage().getWeakStorageImpl(),
       weak_from = from.storage().getWeakStorageImpl(), target = to.data_ptr(),
       source = from.const_data_ptr(), bytes = to.nbytes()] {
        const auto held_to = weak_to.lock(), held_from = weak_from.lock();
        // Memory of the stream's own pool may be freed while a copy into it waits: it is
        // used again in the order of this stream only.
        if (held_to == nullptr && own_pool) return;
        if (held_to == nullptr || held_from == nullptr) {
          ++device->violations;
          return;
        }
        std::memcpy(target, source, bytes);
      });
}

void FakeEngine::lend(const at::Tensor&, c10::Stream stream) {
  const std::lock_guard lock(device_->mutex);
  device_->note("lend", stream.id());
}

}  // namespace reprise::testing
