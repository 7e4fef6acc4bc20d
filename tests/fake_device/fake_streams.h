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
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
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
  // Streams of two devices have two ids; a device's default stream has the first of its own.
  static constexpr c10::StreamId kMostStreams = c10::StreamId{1} << 20;
  static c10::StreamId default_stream(c10::DeviceIndex device) { return device * kMostStreams; }
  static FakeStreams& of_stream(c10::StreamId stream) {
    return of(static_cast<c10::DeviceIndex>(stream / kMostStreams));
  }
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
  // The host reads what the device makes, by an operator: a copy that blocks, or item(). Kernels
  // have done their work, so this is counted and waits for nothing.
  void host_reads() { ++host_reads_; }
  // Counts both kinds.
  std::int64_t waits() const { return synchronizations_ + host_reads_; }
  c10::StreamId fresh();
  // All that was given counts as done.
  void get_there();

  // With events that are recorded, or not.
  static bool has_events;
  static bool is_late;
  // A graph records it.
  static std::optional<c10::Stream> recorded;
  // Kernels take so many times as long.
  static double slowness;

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
  std::atomic<std::int64_t> host_reads_ = 0;
};

// The events of all fake devices: how many there are, and how often they were used.
struct FakeEvents {
  static std::atomic<std::int64_t> alive, recorded, queried;

  enum class Use : std::uint8_t { kNone, kMake, kRecord, kQuery, kElapsed };
  // From the use after `first` others of its kind on, all fail.
  static void fail(Use use, std::int64_t first);
};

// While it lives, events fail in one use.
class EventsFail {
 public:
  explicit EventsFail(FakeEvents::Use use, std::int64_t first = 0) { FakeEvents::fail(use, first); }
  ~EventsFail() { FakeEvents::fail(FakeEvents::Use::kNone, 0); }
  EventsFail(const EventsFail&) = delete;
  EventsFail& operator=(const EventsFail&) = delete;
};

// While it lives, what streams are given is done only at FakeStreams::get_there().
class WorkIsLate {
 public:
  WorkIsLate() { FakeStreams::is_late = true; }
  ~WorkIsLate() { FakeStreams::is_late = false; }
  WorkIsLate(const WorkIsLate&) = delete;
  WorkIsLate& operator=(const WorkIsLate&) = delete;
};

// While it lives, the stream is current and a graph records it.
class GraphRecords {
 public:
  explicit GraphRecords(c10::Stream stream) : current_(stream) { FakeStreams::recorded = stream; }
  ~GraphRecords() { FakeStreams::recorded.reset(); }
  GraphRecords(const GraphRecords&) = delete;
  GraphRecords& operator=(const GraphRecords&) = delete;

 private:
  c10::StreamGuard current_;
};

// Streams of the calling thread.
c10::Stream current_fake_stream(c10::DeviceIndex device = 0);
c10::Stream new_fake_stream(c10::DeviceIndex device = 0);

}  // namespace reprise::testing_support
