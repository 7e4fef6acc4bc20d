// Tells an observer of a step on an accelerator what the step did, with the times of the device. The
// host only gives the device its work, so no time is known when an event happens. Events are kept,
// and told in their order when the step ends, which then waits for the device once.
//
// Under libtorch::limit_mutex().
#pragma once

#include <c10/core/Stream.h>
#include <reprise/budget_extensions.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "libtorch/memory/event_timer.h"

namespace reprise::tape {

class LateObserver final : public BudgetObserver {
 public:
  explicit LateObserver(std::shared_ptr<BudgetObserver> observer);
  ~LateObserver() override;

  // A step begins. Times count from what `stream` was given so far, or from an earlier step that is
  // still under way.
  void begin(c10::Stream stream) noexcept;

  // Around the work of one operator, or of one replay.
  using Running = libtorch::EventTimer::Running;
  using Span = std::size_t;  // a number among those of the step
  std::optional<Running> start(c10::Stream stream) noexcept { return timer_.begin(stream); }
  std::optional<Span> end(std::optional<Running> running, c10::Stream stream) noexcept;
  // The operator or replay that is told next has this span.
  void next(std::optional<Span> span) noexcept { next_ = span; }

  void recorded(const Operator& done) noexcept override;
  void dropped(const Value& value) noexcept override;
  void restored(const Value& value) noexcept override;
  void spent(const Value& value) noexcept override;
  void replayed(const Replay& done) noexcept override;
  void released(const Memory& memory) noexcept override;

  // A step has ended: waits for the device, and tells all.
  void tell() noexcept;

 private:
  struct Event;
  enum class Kind : std::uint8_t { kRecorded, kDropped, kRestored, kSpent, kReplayed, kReleased };
  template <class F>
  bool keep(const F& make) noexcept;
  bool keep(Kind kind, const Value& value) noexcept;
  void read_spans() noexcept;
  void tell(const Event& event, Seconds time, Seconds at) const noexcept;

  const std::shared_ptr<BudgetObserver> observer_;
  libtorch::EventTimer timer_{libtorch::EventTimer::kNoMost};
  std::optional<Span> next_;
  Span count_ = 0;
  // The device has done the work of these, from the first one on.
  std::vector<libtorch::EventTimer::Span> spans_;
  std::vector<Event> events_;
  double told_until_ = 0;
};

}  // namespace reprise::tape
