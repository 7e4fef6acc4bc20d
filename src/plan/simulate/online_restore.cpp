// How a value is restored in a step that runs in arithmetic (src/tape/restorer.cpp).
#include <algorithm>
#include <utility>

#include "core/members.h"
#include "plan/simulate/online_run.h"

namespace reprise::plan {
namespace {

using Index = OnlineStep::Index;

}  // namespace

Index OnlineRun::first_missing(Index producer) const {
  Index missing = kNone;
  for (const OnlineStep::Input& input : step_.inputs_of(producer)) {
    if (input.value == kNone || values_[input.value].has_bytes) continue;
    if (missing == kNone || is_made_before(values_[input.value], values_[missing])) {
      missing = input.value;
    }
  }
  return missing;
}

bool OnlineRun::is_made_of(Index value, Index other) {
  met_.assign(1, values_[value].producer);
  producers_[met_.front()].met = ++walks_;
  for (std::size_t i = 0; i < met_.size() && i < kMostWalked; ++i) {
    for (const OnlineStep::Input& input : step_.inputs_of(met_[i])) {
      if (input.value == other) return true;
      if (input.value == kNone || values_[input.value].depth <= values_[other].depth) continue;
      const Index maker = values_[input.value].producer;
      if (maker == kNone || std::exchange(producers_[maker].met, walks_) == walks_) continue;
      met_.push_back(maker);
    }
  }
  return false;
}

Index OnlineRun::next_to_pin(Index producer, const std::vector<Index>& pinned) {
  const Members<Index> is_pinned(pinned);
  const auto is_candidate = [&](Index value) {
    return value != kNone && values_[value].producer != kNone && !is_pinned.has(value);
  };
  Index first = kNone;
  for (const OnlineStep::Input& input : step_.inputs_of(producer)) {
    if (!is_candidate(input.value)) continue;
    if (first == kNone || is_made_before(values_[input.value], values_[first])) {
      first = input.value;
    }
  }
  Index next = first;
  for (const OnlineStep::Input& input : step_.inputs_of(producer)) {
    if (!is_candidate(input.value) || values_[input.value].depth >= values_[next].depth) continue;
    if (is_made_of(first, input.value)) next = input.value;
  }
  return next;
}

void OnlineRun::restore(Index target) {
  if (values_[target].has_bytes) return;
  try {
    restore(target, /*is_careful=*/true);
  } catch (const Refused&) {
    restore(target, /*is_careful=*/false);
  }
}

void OnlineRun::restore(Index target, bool is_careful) {
  struct Frame {
    Index value;
    Index made = kNone;
    std::vector<Index> pinned;
  };
  std::vector<Frame> stack;
  const std::int64_t most = outcome_.replays + 1000 + 64 * living_;
  stack.push_back({target, kNone, {}});
  const auto release = [&](const Frame& frame) {
    for (const Index value : frame.pinned) unpin(value);
  };
  try {
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.made != kNone) {
        pin(frame.made);
        frame.pinned.push_back(std::exchange(frame.made, kNone));
      }
      if (values_[frame.value].has_bytes || unpack(frame.value) || unpark(frame.value)) {
        release(frame);
        stack.pop_back();
        continue;
      }
      const Index producer = values_[frame.value].producer;
      if (producer == kNone) throw Refused{};
      const Index next = is_careful ? next_to_pin(producer, frame.pinned) : first_missing(producer);
      if (next != kNone) {
        frame.made = next;
        if (!values_[next].has_bytes) stack.push_back({next, kNone, {}});
        continue;
      }
      for (const OnlineStep::Input& input : step_.inputs_of(producer)) {
        if (input.value == kNone || std::ranges::count(frame.pinned, input.value) != 0) continue;
        pin(input.value);
        frame.pinned.push_back(input.value);
      }
      if (outcome_.replays >= most || outcome_.replays >= options_.most_replays) throw Refused{};
      replay(producer);
      for (const Index value : frame.pinned) {
        if (!is_of_use(value)) spare(value);
      }
      release(frame);
      stack.pop_back();
    }
  } catch (const Refused&) {
    for (const Frame& each : stack) release(each);
    throw;
  }
}

}  // namespace reprise::plan
