#include "libtorch/memory/event_timer.h"

#include <c10/util/Exception.h>

#include <utility>

namespace reprise::libtorch {

c10::Event EventTimer::fresh(c10::DeviceType type) {
  if (spare_.empty()) return {type, c10::EventFlag::BACKEND_DEFAULT};
  c10::Event event = std::move(spare_.back());
  spare_.pop_back();
  return event;
}

std::optional<EventTimer::Running> EventTimer::begin(c10::Stream stream) {
  if (!works_ || pending_.size() >= kMost) return std::nullopt;
  try {
    Running running(fresh(stream.device_type()));
    running.start_.record(stream);
    return running;
  } catch (const c10::Error&) {
    works_ = false;
    return std::nullopt;
  }
}

bool EventTimer::end(Running running, c10::Stream stream) {
  if (!works_) return false;
  try {
    c10::Event end = fresh(stream.device_type());
    end.record(stream);
    pending_.push_back({std::move(running.start_), std::move(end)});
    return true;
  } catch (const c10::Error&) {
    works_ = false;
    return false;
  }
}

std::optional<double> EventTimer::poll() {
  if (!works_ || pending_.empty()) return std::nullopt;
  try {
    Pending& oldest = pending_.front();
    if (!oldest.end.query()) return std::nullopt;
    const double seconds = oldest.start.elapsedTime(oldest.end) * 1e-3;
    spare_.push_back(std::move(oldest.start));
    spare_.push_back(std::move(oldest.end));
    pending_.pop_front();
    return seconds;
  } catch (const c10::Error&) {
    works_ = false;
    return std::nullopt;
  }
}

}  // namespace reprise::libtorch
