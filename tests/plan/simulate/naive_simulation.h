// simrd's rules once more, as plainly as they can be written: recursion, sets, every sum made anew.
// What the simulator computes must agree with it.
#pragma once

#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "plan/simulate/simulator.h"

namespace reprise::plan {

class NaiveSimulation {
 public:
  NaiveSimulation(const Trace& trace, const EvictionHeuristic& heuristic, std::int64_t budget)
      : trace_(trace),
        heuristic_(heuristic),
        budget_(budget),
        values_(trace.values.size()),
        is_defined_(trace.tensors.size(), false),
        class_of_(trace.values.size(), -1) {}

  // Throws int where memory runs out.
  void run() {
    for (const Trace::Event& event : trace_.events) {
      const auto subject = event.subject;
      const bool is_operator = event.what == Trace::Do::kRun;
      Value* value = is_operator ? nullptr : &values_[trace_.tensors[subject].value];
      switch (event.what) {
        case Trace::Do::kRun:
          first_run(subject);
          break;
        case Trace::Do::kHold:
          ++value->holds;
          break;
        case Trace::Do::kKeep:
          if (!is_defined_[subject]) materialize(trace_.tensors[subject].producer, subject, true);
          value->is_kept = true;
          pool_remove(trace_.tensors[subject].value);
          break;
        case Trace::Do::kRelease:
          if (--value->holds == 0 && value->is_there && !value->is_kept) {
            drop(trace_.tensors[subject].value);
          }
          break;
      }
    }
  }

  std::int64_t recomputed = 0, peak = 0, evictions = 0;

 private:
  using Index = Trace::Index;

  struct Value {
    bool is_there = false, is_kept = false, was_made = false;
    int holds = 0, locks = 0;
    std::int64_t last_use = 0;
  };

  Index value_of(Index tensor) const { return trace_.tensors[tensor].value; }

  std::set<Index> inputs_of(Index op) const {
    std::set<Index> all;
    const Trace::Range range = trace_.operators[op].arguments;
    for (Index a = range.begin; a < range.end; ++a) all.insert(value_of(trace_.arguments[a]));
    return all;
  }

  std::set<Index> results_of(Index op) const {
    std::set<Index> all;
    const Trace::Range range = trace_.operators[op].results;
    for (Index t = range.begin; t < range.end; ++t) all.insert(value_of(t));
    return all;
  }

  bool is_dropped(Index value) const { return values_[value].was_made && !values_[value].is_there; }

  std::set<Index> dropped_beside(Index value, bool inputs, bool users) const {
    std::set<Index> all;
    for (Index op = 0; op < operators_run_; ++op) {
      const auto in = inputs_of(op), out = results_of(op);
      if (inputs && out.contains(value)) all.insert(in.begin(), in.end());
      if (users && in.contains(value)) all.insert(out.begin(), out.end());
    }
    std::erase_if(all, [&](Index each) { return each == value || !is_dropped(each); });
    return all;
  }

  double own(Index value) const {
    double sum = 0;
    for (Index op = 0; op < operators_run_; ++op) {
      if (results_of(op).contains(value))
        sum += static_cast<double>(trace_.operators[op].nanoseconds);
    }
    return sum;
  }

  double around(Index value) const {
    double sum = 0;
    if (heuristic_.neighbourhood() == Neighbourhood::kClasses) {
      std::set<int> classes;
      for (const Index each : dropped_beside(value, true, true)) classes.insert(class_of_[each]);
      for (const int each : classes) sum += class_cost_[each];
    } else if (heuristic_.neighbourhood() != Neighbourhood::kNone) {
      for (const bool upstream : {true, false}) {
        if (!upstream && heuristic_.neighbourhood() == Neighbourhood::kUpstream) continue;
        std::set<Index> found;
        const std::function<void(Index)> walk = [&](Index at) {
          for (const Index each : dropped_beside(at, upstream, !upstream)) {
            if (each != value && found.insert(each).second) walk(each);
          }
        };
        walk(value);
        for (const Index each : found) sum += own(each);
      }
    }
    return sum;
  }

  void first_run(Index op) {
    materialize(op, trace_.operators[op].results.begin, false);
    const Trace::Range results = trace_.operators[op].results;
    for (Index t = results.begin; t < results.end; ++t) {
      values_[value_of(t)].last_use = clock_;
      ++values_[value_of(t)].holds;
    }
  }

  void materialize(Index op, Index wanted, bool again) {
    const Trace::Operator& run = trace_.operators[op];
    std::vector<Index> missing;
    for (Index a = run.arguments.begin; a < run.arguments.end; ++a) {
      values_[value_of(trace_.arguments[a])].last_use = clock_;
    }
    for (Index a = run.arguments.begin; a < run.arguments.end; ++a) {
      const Index input = trace_.arguments[a];
      is_defined_[input] ? lock(value_of(input)) : missing.push_back(input);
    }
    for (const Index input : missing) {
      if (!is_defined_[input]) materialize(trace_.tensors[input].producer, input, true);
      lock(value_of(input));
    }
    make_room(run.bytes);
    clock_ += run.nanoseconds;
    memory_ += run.bytes;
    peak = std::max(peak, memory_);
    if (again) {
      recomputed += run.nanoseconds;
    } else {
      operators_run_ = op + 1;
    }
    for (Index t = run.results.begin; t < run.results.end; ++t) {
      if (t != wanted) define(t);
    }
    define(wanted);
    for (Index a = run.arguments.begin; a < run.arguments.end; ++a) {
      const Index value = value_of(trace_.arguments[a]);
      if (--values_[value].locks == 0 && !values_[value].is_kept) pool_.push_back(value);
    }
  }

  void define(Index tensor) {
    Value& value = values_[value_of(tensor)];
    if (is_defined_[tensor]) {
      if (!trace_.tensors[tensor].is_view) memory_ -= trace_.values[value_of(tensor)].bytes;
      return;
    }
    is_defined_[tensor] = true;
    if (value.is_there) return;
    value.is_there = true;
    if (value.was_made) {
      class_cost_[class_of_[value_of(tensor)]] -= own(value_of(tensor));
      class_of_[value_of(tensor)] = -1;
    }
    value.was_made = true;
    pool_.push_back(value_of(tensor));
  }

  void lock(Index value) {
    ++values_[value].locks;
    pool_remove(value);
  }

  void pool_remove(Index value) { std::erase(pool_, value); }

  void drop(Index value) {
    pool_remove(value);
    values_[value].is_there = false;
    memory_ -= trace_.values[value].bytes;
    for (Index t = 0; t < trace_.tensors.size(); ++t) {
      if (value_of(t) == value) is_defined_[t] = false;
    }
    const int mine = static_cast<int>(class_cost_.size());
    class_cost_.push_back(own(value));
    class_of_[value] = mine;
    for (const Index each : dropped_beside(value, true, true)) {
      const int theirs = class_of_[each];
      if (theirs == mine) continue;
      class_cost_[mine] += class_cost_[theirs];
      for (int& member : class_of_) {
        if (member == theirs) member = mine;
      }
    }
  }

  void make_room(std::int64_t bytes) {
    while (memory_ + bytes > budget_) {
      if (pool_.empty()) throw 1;
      double lowest = std::numeric_limits<double>::infinity();
      Index best = 0;
      for (const Index each : pool_) {
        const double score = heuristic_.score(
            {.own_cost = own(each) * 1e-9,
             .neighbourhood_cost = around(each) * 1e-9,
             .bytes = trace_.values[each].bytes,
             .staleness = static_cast<double>(clock_ - values_[each].last_use) * 1e-9});
        if (score <= lowest) {
          lowest = score;
          best = each;
        }
        if (score == 0) break;
      }
      drop(best);
      ++evictions;
    }
  }

  const Trace& trace_;
  const EvictionHeuristic& heuristic_;
  std::int64_t budget_;
  std::vector<Value> values_;
  std::vector<bool> is_defined_;
  std::vector<int> class_of_;
  std::vector<double> class_cost_;
  std::vector<Index> pool_;
  Index operators_run_ = 0;
  std::int64_t clock_ = 1, memory_ = 0;
};

}  // namespace reprise::plan
