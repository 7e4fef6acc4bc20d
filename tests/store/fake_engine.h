// An accelerator of its own for the host store: host tensors play the device's, and streams do
// their work as late as they may, or at random. What a stream has been given runs only when
// somebody waits for it, so an order that was not asked for does not come about by luck; a copy
// whose memory has gone meanwhile is noted, and every call is in a log.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "libtorch/memory/transfer_engine.h"
#include "tests/store/faulty_file.h"

namespace reprise::testing {

class FakeEngine final : public libtorch::TransferEngine {
 public:
  static constexpr c10::StreamId kCurrent = 0, kToHost = 1, kToDevice = 2;

  // What happens on the device, for a test to look at while the store has the engine.
  struct Device {
    explicit Device(Faults& faults) : faults(faults) {}

    Faults& faults;
    std::recursive_mutex mutex;
    // Every call: "record 0", "hold 1", "copy 1", "lend 0" and so on, with the stream's number.
    std::vector<std::string> log;
    // Copies that used memory which had been freed.
    int violations = 0;
    // Streams work on their own now and then, as the generator says.
    bool at_random = false;

    std::size_t given(c10::StreamId stream) { return streams[stream].given; }
    void run(c10::StreamId stream, std::size_t until);
    void run_everything();

    struct Stream {
      std::deque<std::function<void()>> work;
      std::size_t given = 0;
      std::size_t done = 0;
    };
    std::map<c10::StreamId, Stream> streams;
    std::mt19937 random{7};

    void note(const std::string& call, c10::StreamId stream);
    void give(c10::StreamId stream, std::function<void()> work);
  };

  explicit FakeEngine(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  bool serves(c10::Device device) const override { return device.is_cpu(); }
  c10::Stream current(c10::Device device) override { return stream(device, kCurrent); }
  c10::Stream side(c10::Device device, Direction direction) override {
    return stream(device, direction == Direction::kToHost ? kToHost : kToDevice);
  }
  std::unique_ptr<libtorch::DeviceEvent> record(c10::Stream stream) override;
  void drain(c10::Stream stream) override;
  at::Tensor allocate_host(at::ScalarType dtype, std::int64_t length) override;
  at::Tensor allocate_device(at::ScalarType dtype, std::int64_t length,
                             c10::Stream stream) override;
  void copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) override;
  void lend(const at::Tensor& tensor, c10::Stream stream) override;

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }

  const std::shared_ptr<Device> device_;
};

}  // namespace reprise::testing
