// The fake accelerator's streams and events, and a watch over their order.
//
// Kernels of the fake device have done their work when they return, but it counts as done only when
// the device "gets there": at once, or, with WorkIsLate, when the test says so. Meanwhile events
// are not reached. Every stream has a clock of its own, which its kernels move on, and knows how
// far it has waited for which other stream. So the watch can tell what a real device would leave to
// chance: a kernel that reads what another stream may not have written yet, and memory that is
// handed out again while another stream may still read it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace reprise::testing_support {

// A point of a stream: as many kernels were given to it before.
struct Point {
  c10::StreamId stream = 0;
  std::uint64_t count = 0;
};

class FakeStreams {
 public:
  static FakeStreams& of(c10::DeviceIndex device);
  static std::recursive_mutex& mutex();

  // The stream gets one more kernel, which takes that long.
  Point give(c10::StreamId stream, double seconds);
  // Whether all that comes on `stream` from now on comes after the point.
  bool has_waited(c10::StreamId stream, Point point);
  bool is_reached(Point point);

  struct Mark {
    Point point;
    double clock = 0;
    std::map<c10::StreamId, std::uint64_t> waited;
  };
  Mark mark(c10::StreamId stream);
  void wait(c10::StreamId stream, const Mark& mark);
  // The host waits for everything.
  void synchronize();
  std::int64_t synchronizations() const { return synchronizations_; }
  c10::StreamId fresh() { return ++last_; }
  // All that was given counts as done.
  void get_there();

  // With events that are recorded, or not.
  static bool has_events;
  static bool is_late;

 private:
  struct Stream {
    std::uint64_t given = 0;
    std::uint64_t done = 0;
    double clock = 0;
    std::map<c10::StreamId, std::uint64_t> waited;
  };
  std::map<c10::StreamId, Stream> streams_;
  c10::StreamId last_ = 0;
  std::int64_t synchronizations_ = 0;
};

// While it lives, what streams are given is done only at FakeStreams::get_there().
class WorkIsLate {
 public:
  WorkIsLate() { FakeStreams::is_late = true; }
  ~WorkIsLate() { FakeStreams::is_late = false; }
  WorkIsLate(const WorkIsLate&) = delete;
  WorkIsLate& operator=(const WorkIsLate&) = delete;
};

// Streams of the calling thread.
c10::Stream current_fake_stream(c10::DeviceIndex device = 0);
c10::Stream new_fake_stream(c10::DeviceIndex device = 0);

}  // namespace reprise::testing_support
