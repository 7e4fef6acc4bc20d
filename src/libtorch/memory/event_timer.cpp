#include "libtorch/memory/event_timer.h"

#include <utility>

namespace reprise::libtorch {

c10::Event EventTimer::fresh(c10::DeviceType type) {
  if (spare_.empty()) return {type, c10::EventFlag::BACKEND_DEFAULT};
  c10::Event event = std::move(spare_.back());
  spare_.pop_back();
  return event;
}

void EventTimer::stop() noexcept {
  works_ = false;
  origin_.reset();
  pending_.clear();
  spare_.clear();
}

// Whatever is thrown, a backend's error or a failed allocation: costs are worth no step.
template <class F>
bool EventTimer::try_to(const F& act) noexcept {
  if (!works_) return false;
  try {
    act();
    return true;
  } catch (...) {
    stop();
    return false;
  }
}

void EventTimer::start(std::optional<c10::Stream> stream) noexcept {
  works_ = true;
  if (!stream) return;
  try_to([&] {
    origin_.emplace(fresh(stream->device_type()));
    origin_->record(*stream);
  });
}

std::optional<EventTimer::Running> EventTimer::begin(c10::Stream stream) noexcept {
  if (pending_.size() >= most_) return std::nullopt;
  std::optional<Running> running;
  try_to([&] {
    c10::Event event = fresh(stream.device_type());
    event.record(stream);
    running = Running(std::move(event));
  });
  return running;
}

bool EventTimer::end(Running running, c10::Stream stream) noexcept {
  return try_to([&] {
    c10::Event end = fresh(stream.device_type());
    end.record(stream);
    pending_.push_back({std::move(running.start_), std::move(end)});
  });
}

std::optional<EventTimer::Span> EventTimer::poll() noexcept {
  if (pending_.empty()) return std::nullopt;
  std::optional<Span> span;
  try_to([&] {
    Pending& oldest = pending_.front();
    if (!oldest.end.query()) return;
    const Span read{.begin = origin_ ? origin_->elapsedTime(oldest.start) * 1e-3 : 0,
                    .seconds = oldest.start.elapsedTime(oldest.end) * 1e-3};
    spare_.push_back(std::move(oldest.start));
    spare_.push_back(std::move(oldest.end));
    pending_.pop_front();
    span = read;
  });
  return span;
}

std::optional<EventTimer::Span> EventTimer::take() noexcept {
  if (auto span = poll()) return span;
  if (pending_.empty()) return std::nullopt;
  try_to([&] { pending_.front().end.synchronize(); });
  return poll();
}

void EventTimer::wait() noexcept {
  if (!pending_.empty()) try_to([&] { pending_.back().end.synchronize(); });
}

}  // namespace reprise::libtorch
