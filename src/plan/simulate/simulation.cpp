#include "plan/simulate/simulation.h"

#include <algorithm>
#include <limits>

namespace reprise::plan {

namespace {

constexpr double kSecond = 1e-9;  // in seconds, a nanosecond

std::int64_t recompute_limit(const Trace& trace, double slowdown_limit) {
  const double most = (slowdown_limit - 1) * static_cast<double>(trace.nanoseconds());
  return most < 9e18 ? static_cast<std::int64_t>(most) : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

Simulation::Simulation(const Trace& trace, const ValueGraph& graph,
                       const EvictionHeuristic& heuristic, const SimulationOptions& options)
    : trace_(trace),
      heuristic_(heuristic),
      options_(options),
      costs_(heuristic.neighbourhood(), trace, graph),
      values_(trace.values.size()),
      // No tensor is made at the beginning: none has the epoch of its value.
      epochs_(trace.tensors.size(), std::numeric_limits<std::uint32_t>::max()),
      limit_(recompute_limit(trace, options.slowdown_limit)),
      random_(options.seed) {
  if (options.search != Search::kIndex) return;
  entries_ = std::vector<EvictionEntry>(trace.values.size());
  const auto around = [this](const EvictionEntry& entry) {
    return costs_.around(static_cast<Index>(&entry - entries_.data())) * kSecond;
  };
  index_ = std::make_unique<EvictionIndex>(heuristic, around, options.seed);
}

SimulationResult Simulation::run() {
  for (const Trace::Event& event : trace_.events) {
    if (!carry_out(event)) break;
    ++result_.events;
  }
  return result_;
}

bool Simulation::is_out_of_time() {
  if (options_.time_limit == Seconds(0) || watch_.elapsed() < options_.time_limit) return false;
  result_.outcome = Outcome::kOutOfTime;
  return true;
}

bool Simulation::carry_out(const Trace::Event& event) {
  if (is_out_of_time()) return false;
  switch (event.what) {
    case Trace::Do::kRun:
      return run_operator(event.subject, trace_.operators[event.subject].results.begin, false);
    case Trace::Do::kHold:
      ++values_[trace_.tensors[event.subject].value].holds;
      return true;
    case Trace::Do::kKeep:
      return keep(event.subject);
    case Trace::Do::kRelease:
      release(event.subject);
      return true;
  }
  return true;
}

bool Simulation::keep(Index tensor) {
  if (!is_defined(tensor) && !run_operator(trace_.tensors[tensor].producer, tensor, true)) {
    return false;
  }
  ValueState& value = values_[trace_.tensors[tensor].value];
  if (!value.is_kept) lock(trace_.tensors[tensor].value);
  value.is_kept = true;
  return true;
}

void Simulation::release(Index tensor) {
  const Index value = trace_.tensors[tensor].value;
  ValueState& state = values_[value];
  if (--state.holds == 0 && state.is_there && !state.is_kept) drop(value);
}

// A view is gone with its value, and does not come back with it: making it again runs its operator.
bool Simulation::is_defined(Index tensor) const {
  const ValueState& value = values_[trace_.tensors[tensor].value];
  return value.is_there && epochs_[tensor] == value.epoch;
}

// The stack is a vector: a chain of any length may have to be made again.
bool Simulation::run_operator(Index op, Index wanted, bool again) {
  begin(op, wanted, again);
  while (!stack_.empty()) {
    Frame& frame = stack_.back();
    if (frame.next == waiting_.size()) {
      if (!finish(frame)) return false;
      waiting_.resize(frame.first);
      stack_.pop_back();
      continue;
    }
    const Index input = waiting_[frame.next];
    if (is_defined(input)) {
      lock(trace_.tensors[input].value);
      ++frame.next;
    } else {
      begin(trace_.tensors[input].producer, input, true);
    }
  }
  return true;
}

// What is there is locked first, so that restoring the rest cannot drop it.
void Simulation::begin(Index op, Index wanted, bool again) {
  const Trace::Range arguments = trace_.operators[op].arguments;
  const std::size_t first = waiting_.size();
  for (Index a = arguments.begin; a < arguments.end; ++a) {
    values_[trace_.tensors[trace_.arguments[a]].value].last_use = clock_;
  }
  for (Index a = arguments.begin; a < arguments.end; ++a) {
    const Index input = trace_.arguments[a];
    if (is_defined(input)) {
      lock(trace_.tensors[input].value);
    } else {
      waiting_.push_back(input);
    }
  }
  stack_.push_back({op, wanted, first, first, again});
}

bool Simulation::finish(const Frame& frame) {
  const Trace::Operator& op = trace_.operators[frame.op];
  if (!make_room(op.bytes)) {
    if (result_.outcome == Outcome::kFits) result_.outcome = Outcome::kOutOfMemory;
    return false;
  }
  clock_ += op.nanoseconds;
  memory_ += op.bytes;
  result_.peak = std::max(result_.peak, memory_);
  if (!frame.again) costs_.made(frame.op);
  for (Index t = op.results.begin; t < op.results.end; ++t) {
    if (t != frame.wanted) define(t);
  }
  if (op.results.size() > 0) define(frame.wanted);
  for (Index a = op.arguments.begin; a < op.arguments.end; ++a) {
    unlock(trace_.tensors[trace_.arguments[a]].value);
  }
  if (frame.again) {
    ++result_.recomputations;
    result_.recompute_nanoseconds += op.nanoseconds;
    if (result_.recompute_nanoseconds > limit_) {
      result_.outcome = Outcome::kTooSlow;
      return false;
    }
    return !is_out_of_time();
  }
  result_.base_nanoseconds += op.nanoseconds;
  for (Index t = op.results.begin; t < op.results.end; ++t) {
    const Index value = trace_.tensors[t].value;
    values_[value].last_use = clock_;
    ++values_[value].holds;
    if (index_) index_->touch(entries_[value], static_cast<double>(clock_) * kSecond);
  }
  return true;
}

// The tensor's operator has run, with its bytes counted: those of what was there already go again.
void Simulation::define(Index tensor) {
  const Index value = trace_.tensors[tensor].value;
  ValueState& state = values_[value];
  if (is_defined(tensor)) {
    if (!trace_.tensors[tensor].is_view) memory_ -= trace_.values[value].bytes;
    return;
  }
  epochs_[tensor] = state.epoch;
  if (state.is_there) return;
  state.is_there = true;
  if (state.epoch > 0) costs_.restored(value);
  make_droppable(value);
}

void Simulation::lock(Index value) {
  if (values_[value].locks++ == 0) make_undroppable(value);
}

void Simulation::unlock(Index value) {
  if (--values_[value].locks == 0) make_droppable(value);
}

void Simulation::make_droppable(Index value) {
  values_[value].place = static_cast<Index>(droppable_.size());
  values_[value].order = order_++;
  droppable_.push_back(value);
  if (!index_) return;
  entries_[value].own_cost = costs_.own(value) * kSecond;
  entries_[value].bytes = trace_.values[value].bytes;
  index_->insert(entries_[value], static_cast<double>(values_[value].last_use) * kSecond);
}

void Simulation::make_undroppable(Index value) {
  const Index last = droppable_.back();
  droppable_[values_[value].place] = last;
  values_[last].place = values_[value].place;
  droppable_.pop_back();
  if (index_) index_->remove(entries_[value]);
}

void Simulation::drop(Index value) {
  ValueState& state = values_[value];
  make_undroppable(value);
  memory_ -= trace_.values[value].bytes;
  state.is_there = false;
  ++state.epoch;
  costs_.dropped(value);
}

bool Simulation::make_room(std::int64_t bytes) {
  while (memory_ + bytes > options_.budget) {
    if (droppable_.empty() || is_out_of_time()) return false;
    drop(victim());
    ++result_.evictions;
  }
  return true;
}

Simulation::Index Simulation::victim() {
  if (index_) {
    const EvictionEntry* entry = index_->choose(static_cast<double>(clock_) * kSecond);
    return static_cast<Index>(entry - entries_.data());
  }
  return heuristic_.shape() == ScoreShape::kArbitrary ? drawn() : lowest_score();
}

EvictionCandidate Simulation::candidate(Index value) const {
  return {.own_cost = costs_.own(value) * kSecond,
          .neighbourhood_cost = 0,
          .bytes = trace_.values[value].bytes,
          .staleness = static_cast<double>(clock_ - values_[value].last_use) * kSecond};
}

// Of equal scores the youngest, and of zeros the oldest: so does simrd's scan of its list.
bool Simulation::goes_before(double score, Index value, double lowest, Index best) const {
  if (score != lowest) return score < lowest;
  return score == 0 ? values_[value].order < values_[best].order
                    : values_[value].order > values_[best].order;
}

Simulation::Index Simulation::lowest_score() {
  double lowest = std::numeric_limits<double>::infinity();
  Index best = droppable_.front();
  for (const Index value : droppable_) {
    EvictionCandidate each = candidate(value);
    double score = heuristic_.score(each);
    // Dropped neighbours only make it dearer, and looking for them is what takes time.
    if (score > lowest) continue;
    each.neighbourhood_cost = costs_.around(value) * kSecond;
    if (each.neighbourhood_cost != 0) score = heuristic_.score(each);
    if (!goes_before(score, value, lowest, best)) continue;
    lowest = score;
    best = value;
  }
  return best;
}

// Begins anywhere, so that any of equals may go.
Simulation::Index Simulation::drawn() {
  const std::size_t begin = random_() % droppable_.size();
  double lowest = std::numeric_limits<double>::infinity();
  Index best = droppable_[begin];
  for (std::size_t i = 0; i < droppable_.size(); ++i) {
    const Index value = droppable_[(begin + i) % droppable_.size()];
    EvictionCandidate each = candidate(value);
    each.neighbourhood_cost = costs_.around(value) * kSecond;
    const double score = heuristic_.score(each);
    if (score >= lowest) continue;
    lowest = score;
    best = value;
  }
  return best;
}

}  // namespace reprise::plan
