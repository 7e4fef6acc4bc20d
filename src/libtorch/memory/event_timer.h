// How long an accelerator works on what a stream is given, known later: two events around it, asked
// after without waiting. Where a device has no events, or none that tell the time, nothing is ever
// known. Not for several threads at once.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace reprise::libtorch {

class EventTimer {
 public:
  // Measurements that may be under way at once; more are not begun.
  static constexpr std::size_t kMost = 64;

  class Running {
   private:
    friend class EventTimer;
    explicit Running(c10::Event event) : start_(std::move(event)) {}
    c10::Event start_;
  };
  // None where nothing can be measured now.
  std::optional<Running> begin(c10::Stream stream);
  // False if nothing will be known of it.
  bool end(Running running, c10::Stream stream);
  // Seconds of the oldest measurement that was ended, once the device has come so far. Forgets it.
  std::optional<double> poll();

 private:
  struct Pending {
    c10::Event start;
    c10::Event end;
  };
  c10::Event fresh(c10::DeviceType type);

  bool works_ = true;
  std::deque<Pending> pending_;
  std::vector<c10::Event> spare_;
};

}  // namespace reprise::libtorch
