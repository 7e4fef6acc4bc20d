// How long an accelerator works on what a stream is given, known later: two events around the work,
// asked after without waiting. Where a device has no events, or none that tell the time, nothing is
// ever known. Not for several threads at once.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

namespace reprise::libtorch {

// No function throws. If an event cannot be made, recorded, asked or read, the timer stops and
// frees its events; start() gives it another try.
class EventTimer {
 public:
  static constexpr std::size_t kNoMost = std::numeric_limits<std::size_t>::max();

  // `most`: measurements under way at once; beyond that none begins.
  explicit EventTimer(std::size_t most) : most_(most) {}

  // Works again after an error. With a stream, spans count from what the stream was given so far.
  void start(std::optional<c10::Stream> stream = std::nullopt) noexcept;

  class Running {
   private:
    friend class EventTimer;
    explicit Running(c10::Event event) noexcept : start_(std::move(event)) {}
    c10::Event start_;
  };
  // None where nothing can be measured now.
  std::optional<Running> begin(c10::Stream stream) noexcept;
  // False if nothing will be known of it.
  bool end(Running running, c10::Stream stream) noexcept;

  struct Span {
    double begin;  // seconds after start(); 0 where that named no stream
    double seconds;
  };
  // The oldest measurement that was ended, once the device has come so far. Forgets it.
  std::optional<Span> poll() noexcept;
  // The same, but waits for the device where it must. None where nothing is pending.
  std::optional<Span> take() noexcept;
  // Waits for the newest measurement that was ended.
  void wait() noexcept;

  // False after an error: what was pending is never known.
  bool works() const { return works_; }

 private:
  struct Pending {
    c10::Event start;
    c10::Event end;
  };
  c10::Event fresh(c10::DeviceType type);
  void stop() noexcept;
  template <class F>
  bool try_to(const F& act) noexcept;

  const std::size_t most_;
  bool works_ = true;
  std::optional<c10::Event> origin_;
  std::deque<Pending> pending_;
  std::vector<c10::Event> spare_;
};

}  // namespace reprise::libtorch
