#include "tape/device/late_observer.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

namespace reprise::tape {

struct LateObserver::Event {
  Kind kind;
  std::string name = {};
  std::vector<Memory> arguments = {};
  std::vector<std::size_t> written = {};
  std::vector<Memory> results = {};
  Seconds time{};  // as it was known when the event happened
  Bytes bytes = {};
  Bytes live = {};
  std::optional<Span> span = {};
  Memory memory = {};
};

namespace {

constexpr std::size_t kFewSpans = 64;

}  // namespace

LateObserver::LateObserver(std::shared_ptr<BudgetObserver> observer)
    : observer_(std::move(observer)) {}

LateObserver::~LateObserver() = default;

void LateObserver::begin(c10::Stream stream) noexcept {
  if (count_ != 0 || !events_.empty()) return;
  told_until_ = 0;
  timer_.start(stream);
}

std::optional<LateObserver::Span> LateObserver::end(std::optional<Running> running,
                                                    c10::Stream stream) noexcept {
  read_spans();
  if (!running) return std::nullopt;
  try {
    // So that none is lost later, which would shift those behind it.
    if (spans_.capacity() <= count_) spans_.reserve(2 * count_ + kFewSpans);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
  if (!timer_.end(*std::move(running), stream)) return std::nullopt;
  return count_++;
}

// Events of the timer that are read are used again, so that a step needs few of them.
void LateObserver::read_spans() noexcept {
  while (const auto span = timer_.poll()) spans_.push_back(*span);
}

// Without memory for it, all is told now, and the event by the caller.
template <class F>
bool LateObserver::keep(const F& make) noexcept {
  try {
    events_.push_back(make());
    return true;
  } catch (const std::bad_alloc&) {
    tell();
    return false;
  }
}

void LateObserver::recorded(const Operator& done) noexcept {
  const std::optional<Span> span = std::exchange(next_, std::nullopt);
  const bool is_kept = keep([&] {
    return Event{.kind = Kind::kRecorded,
                 .name = std::string(done.name),
                 .arguments = {done.arguments.begin(), done.arguments.end()},
                 .written = {done.written.begin(), done.written.end()},
                 .results = {done.results.begin(), done.results.end()},
                 .time = done.time,
                 .live = done.live,
                 .span = span};
  });
  if (!is_kept) observer_->recorded(done);
}

void LateObserver::replayed(const Replay& done) noexcept {
  const std::optional<Span> span = std::exchange(next_, std::nullopt);
  const bool is_kept = keep([&] {
    return Event{.kind = Kind::kReplayed,
                 .name = std::string(done.name),
                 .time = done.time,
                 .live = done.live,
                 .span = span};
  });
  if (!is_kept) observer_->replayed(done);
}

bool LateObserver::keep(Kind kind, const Value& value) noexcept {
  return keep([&] {
    return Event{
        .kind = kind, .name = std::string(value.maker), .bytes = value.bytes, .live = value.live};
  });
}

void LateObserver::dropped(const Value& value) noexcept {
  if (!keep(Kind::kDropped, value)) observer_->dropped(value);
}

void LateObserver::restored(const Value& value) noexcept {
  if (!keep(Kind::kRestored, value)) observer_->restored(value);
}

void LateObserver::spent(const Value& value) noexcept {
  if (!keep(Kind::kSpent, value)) observer_->spent(value);
}

void LateObserver::released(const Memory& memory) noexcept {
  if (!keep([&] { return Event{.kind = Kind::kReleased, .memory = memory}; })) {
    observer_->released(memory);
  }
}

void LateObserver::tell() noexcept {
  timer_.wait();
  while (const auto span = timer_.take()) spans_.push_back(*span);
  for (const Event& event : events_) {
    const bool is_work = event.kind == Kind::kRecorded || event.kind == Kind::kReplayed;
    double seconds = is_work ? event.time.count() : 0;
    double end = told_until_ + seconds;
    if (event.span && *event.span < spans_.size()) {
      seconds = spans_[*event.span].seconds;
      end = spans_[*event.span].begin + seconds;
    }
    told_until_ = std::max(told_until_, end);
    tell(event, Seconds(seconds), Seconds(told_until_));
  }
  events_.clear();
  spans_.clear();
  count_ = 0;
}

void LateObserver::tell(const Event& event, Seconds time, Seconds at) const noexcept {
  const Value value{.maker = event.name, .bytes = event.bytes, .live = event.live, .at = at};
  switch (event.kind) {
    case Kind::kRecorded:
      return observer_->recorded({.name = event.name,
                                  .arguments = event.arguments,
                                  .written = event.written,
                                  .results = event.results,
                                  .time = time,
                                  .live = event.live,
                                  .at = at});
    case Kind::kReplayed:
      return observer_->replayed({.name = event.name, .time = time, .live = event.live, .at = at});
    case Kind::kDropped:
      return observer_->dropped(value);
    case Kind::kRestored:
      return observer_->restored(value);
    case Kind::kSpent:
      return observer_->spent(value);
    case Kind::kReleased:
      return observer_->released(event.memory);
  }
}

}  // namespace reprise::tape
