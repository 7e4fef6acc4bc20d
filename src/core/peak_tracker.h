// Peaks over many overlapping periods, out of one counter that knows only its peak since it was
// last reset.
//
// Allocators and device statistics keep a single high-water mark. To measure several periods at
// once (and the whole process besides) that mark is read and restarted whenever a period begins,
// and what it showed is folded into every period that is open at that moment. Nothing here knows
// what is counted.
//
// Invariant, under the tracker's mutex: for each open period, and for the whole time,
//     peak = max(what was folded into it, the mark since its last restart).
// Beginning a period restarts the mark after folding it, so the new period alone starts from the
// live level and the others lose nothing. A mark never needs folding when a period ends.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>

namespace reprise {

// The counter: implemented by the CPU allocator, by device statistics, and by fakes in tests.
class LevelSource {
 public:
  virtual ~LevelSource() = default;
  virtual std::int64_t live() = 0;
  // The highest level since the last restart, at least live().
  virtual std::int64_t mark() = 0;
  // Returns mark() and lets it start again from the live level. Whatever is counted from here on
  // must show in the new mark, and whatever was counted before in one of the two.
  virtual std::int64_t restart_mark() = 0;
};

// Thread-safe. The source must outlive the tracker, and the tracker its periods.
class PeakTracker {
 public:
  explicit PeakTracker(LevelSource& source) : source_(source) {}
  PeakTracker(const PeakTracker&) = delete;
  PeakTracker& operator=(const PeakTracker&) = delete;

  std::int64_t live() { return source_.live(); }
  // The highest level since the tracker was made.
  std::int64_t peak();

  // One measured time span; any number may be open, in any overlap and on any threads.
  class Period {
   public:
    explicit Period(PeakTracker& tracker);
    ~Period();
    Period(const Period&) = delete;
    Period& operator=(const Period&) = delete;

    std::int64_t live_at_start() const { return live_at_start_; }
    std::int64_t peak() const;

   private:
    friend class PeakTracker;
    PeakTracker& tracker_;
    std::int64_t live_at_start_ = 0;
    std::int64_t folded_ = 0;
    std::list<Period*>::iterator place_;
  };

 private:
  LevelSource& source_;
  std::mutex mutex_;
  std::int64_t folded_ = 0;
  std::list<Period*> open_;
};

}  // namespace reprise
