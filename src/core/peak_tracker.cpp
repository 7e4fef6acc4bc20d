// The folding described in the header. Opening a period costs one visit to each open one; counting
// itself stays in the source and takes no lock.
#include "core/peak_tracker.h"

#include <algorithm>

namespace reprise {

std::int64_t PeakTracker::peak() {
  std::lock_guard lock(mutex_);
  return std::max(folded_, source_.mark());
}

PeakTracker::Period::Period(PeakTracker& tracker) : tracker_(tracker) {
  std::lock_guard lock(tracker_.mutex_);
  place_ = tracker_.open_.insert(tracker_.open_.end(), this);
  std::int64_t mark = 0;
  try {
    mark = tracker_.source_.restart_mark();
    live_at_start_ = tracker_.source_.live();
  } catch (...) {
    tracker_.open_.erase(place_);
    throw;
  }
  tracker_.folded_ = std::max(tracker_.folded_, mark);
  for (Period* period : tracker_.open_) {
    if (period != this) period->folded_ = std::max(period->folded_, mark);
  }
  folded_ = live_at_start_;
}

PeakTracker::Period::~Period() {
  std::lock_guard lock(tracker_.mutex_);
  tracker_.open_.erase(place_);
}

std::int64_t PeakTracker::Period::peak() const {
  std::lock_guard lock(tracker_.mutex_);
  return std::max(folded_, tracker_.source_.mark());
}

}  // namespace reprise
