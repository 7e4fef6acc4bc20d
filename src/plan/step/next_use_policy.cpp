// Runs the step once, in order, without tensors.
#include "plan/step/next_use_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;

constexpr Index kNever = std::numeric_limits<Index>::max();

class NextUseRun {
 public:
  NextUseRun(const StepGraph& graph, const NextUseOptions& options)
      : graph_(graph),
        options_(options),
        plan_(graph),
        storages_(graph.storages()),
        defined_(graph.tensors(), 0),
        visited_(graph.operators(), 0),
        priced_(graph.operators(), 0) {
    std::int64_t at = 0;
    for (Index op = 0; op < graph.operators(); ++op) {
      begin_.push_back(static_cast<double>(at));
      at += graph.nanoseconds(op);
      for (const Index tensor : graph.reads(op)) add_use(tensor, op);
    }
    begin_.push_back(static_cast<double>(at));
    for (const Index tensor : graph.kept()) add_use(tensor, graph.operators());
  }

  std::optional<GraphPlan> run() {
    for (now_ = 0; now_ < graph_.operators(); ++now_) {
      if (now_ % 64 == 0 && options_.is_cancelled && options_.is_cancelled()) return {};
      if (!read(graph_.reads(now_)) || !execute(now_)) return {};
      for (const Index tensor : graph_.reads(now_)) {
        unlock(tensor);
        note_if_idle(graph_.tensor(tensor).storage);
      }
    }
    if (!read(graph_.kept()) || !make_room(0)) return {};
    return std::move(plan_);
  }

 private:
  struct State {
    std::vector<Index> uses;  // operators, in order; after the last one the end of the step
    std::size_t next = 0;     // of `uses`: the first that is still to come
    std::uint32_t epoch = 0;  // how often it was made; 0: never
    std::int32_t locks = 0;
    bool is_there = false;
    bool is_idle = false;     // nothing to come reads it itself
    bool is_settled = false;  // it goes only after its last use
    // Known until what is made from it is dropped or made again, or that operator runs.
    bool knows_use = false;
    Index next_use = kNever;
  };

  // What is there and not settled, those first that are cheap to make again for their bytes:
  // `least` is what a score is at least, but for the time.
  struct Candidate {
    double least;
    Index storage;
    bool operator<(const Candidate& other) const {
      return least != other.least ? least < other.least : storage < other.storage;
    }
  };
  Candidate candidate(Index storage) const {
    const StepGraph::Storage& of = graph_.storage(storage);
    const double factor = options_.factors.empty() ? 1 : std::min(options_.factors[storage], 1.);
    const double bytes = std::max(static_cast<double>(of.bytes), 1.);
    return {factor * static_cast<double>(least_cost(of.op)) / bytes, storage};
  }

  void add_use(Index tensor, Index op) {
    std::vector<Index>& uses = storages_[graph_.tensor(tensor).storage].uses;
    if (uses.empty() || uses.back() != op) uses.push_back(op);
  }

  State& state(Index tensor) { return storages_[graph_.tensor(tensor).storage]; }
  bool is_defined(Index tensor) {
    const State& on = state(tensor);
    return on.is_there && defined_[tensor] == on.epoch;
  }
  void lock(Index tensor) {
    ++state(tensor).locks;
    if (now_ >= graph_.half()) settle(graph_.tensor(tensor).storage);
  }
  void unlock(Index tensor) { --state(tensor).locks; }

  // Makes the tensors again that are gone, and locks all of them.
  bool read(std::span<const Index> tensors) {
    for (const Index tensor : tensors) lock(tensor);
    std::vector<std::pair<Index, bool>> again;  // operators, and whether they are loaded
    ++round_of_visits_;
    for (const Index tensor : tensors) collect(tensor, again);
    std::sort(again.begin(), again.end());
    for (const auto& [op, loads] : again) {
      if (loads) continue;
      for (const Index tensor : graph_.reads(op)) lock(tensor);
    }
    for (const auto& [op, loads] : again) {
      recompute_ += loads ? load_price(op) : graph_.nanoseconds(op);
      if (recompute_ > options_.most_nanoseconds || !execute(op)) return false;
      plan_.slots[op].push_back(now_);
      if (loads) {
        plan_.loads[op].push_back(now_);
        continue;
      }
      for (const Index tensor : graph_.reads(op)) unlock(tensor);
    }
    return true;
  }

  // Of the next one: the first comes with the way to the store.
  std::int64_t load_price(Index op) const {
    return (plan_.loads[op].empty() ? 2 : 1) * graph_.transfer_nanoseconds(op);
  }
  // Whatever it would be made from.
  bool is_loaded(Index op) const {
    return graph_.can_load(op) && load_price(op) <= graph_.nanoseconds(op);
  }
  std::int64_t least_cost(Index op) const {
    const std::int64_t own = graph_.nanoseconds(op);
    return graph_.can_load(op) ? std::min(own, graph_.transfer_nanoseconds(op)) : own;
  }

  // The operators that must run again for the tensor to be there.
  void collect(Index tensor, std::vector<std::pair<Index, bool>>& again) {
    std::vector<Index> open{tensor};
    while (!open.empty()) {
      const Index wanted = open.back();
      open.pop_back();
      const Index op = graph_.tensor(wanted).op;
      if (is_defined(wanted) || visited_[op] == round_of_visits_) continue;
      visited_[op] = round_of_visits_;
      const bool loads =
          graph_.can_load(op) && static_cast<double>(load_price(op)) < cost_of_running(op);
      again.emplace_back(op, loads);
      if (loads) continue;
      for (const Index read : graph_.reads(op)) open.push_back(read);
    }
  }

  bool execute(Index op) {
    std::int64_t bytes = 0;
    for (const Index storage : graph_.makes(op)) bytes += graph_.storage(storage).bytes;
    if (!make_room(bytes)) return false;
    for (const Index storage : graph_.makes(op)) {
      State& made = storages_[storage];
      if (made.is_there) {
        settle(storage);
        continue;
      }
      made.is_there = true;
      if (made.epoch++ > 0) forget_uses(storage);
      made.is_settled = (graph_.runs_again_once() && made.epoch > 1) ||
                        (graph_.is_split() && op >= graph_.half());
      if (!made.is_settled) {
        const Candidate each = candidate(storage);
        candidates_.insert(std::lower_bound(candidates_.begin(), candidates_.end(), each), each);
      }
      made.is_idle = false;
      note_if_idle(storage);
      live_ += graph_.storage(storage).bytes;
    }
    for (const Index tensor : graph_.results(op)) defined_[tensor] = state(tensor).epoch;
    return true;
  }

  void drop(Index storage) {
    State& gone = storages_[storage];
    gone.is_there = false;
    forget_uses(storage);
    live_ -= graph_.storage(storage).bytes;
    if (!gone.is_settled) erase_candidate(storage);
  }

  // From now on it is dropped only after its last use. Its operator may not run once more
  // (StepGraph::split_at()).
  void settle(Index storage) {
    State& of = storages_[storage];
    if (!graph_.runs_again_once() || of.is_settled) return;
    if (of.is_there) erase_candidate(storage);
    of.is_settled = true;
  }

  void erase_candidate(Index storage) {
    candidates_.erase(std::lower_bound(candidates_.begin(), candidates_.end(), candidate(storage)));
  }

  // Nothing else has a score without a time until it is needed.
  void note_if_idle(Index storage) {
    State& of = storages_[storage];
    if (of.is_idle || !of.is_there || direct_use(storage) != kNever) return;
    of.is_idle = true;
    idle_.push_back(storage);
  }

  Index direct_use(Index storage) {
    State& of = storages_[storage];
    while (of.next < of.uses.size() && of.uses[of.next] <= now_) ++of.next;
    return of.next < of.uses.size() ? of.uses[of.next] : kNever;
  }

  bool make_room(std::int64_t bytes) {
    while (live_ + graph_.fixed_bytes(now_) + bytes > options_.budget) {
      double lowest = std::numeric_limits<double>::infinity();
      Index best = kNever;
      const auto consider = [&](Index storage) {
        if (storages_[storage].locks > 0 || graph_.storage(storage).bytes == 0) return;
        const double score = score_of(storage, lowest);
        if (score >= lowest || !may_drop(storage)) return;
        lowest = score;
        best = storage;
      };
      std::erase_if(idle_, [&](Index storage) {
        return !storages_[storage].is_idle || !storages_[storage].is_there;
      });
      for (const Index storage : idle_) consider(storage);
      const double longest = wait(graph_.operators());
      for (const Candidate& each : candidates_) {
        if (each.least >= lowest * longest) break;
        consider(each.storage);
      }
      if (best == kNever) return false;
      drop(best);
    }
    return true;
  }

  bool may_drop(Index storage) {
    if (!graph_.is_split()) return true;
    const Index use = next_use(storage);
    return use == kNever || (use >= graph_.half() && !storages_[storage].is_settled);
  }

  // Or anything that is not below `enough`.
  double score_of(Index storage, double enough) {
    // What it would be made from makes it only dearer, and takes time to find.
    const Index use = next_use(storage);
    if (use == kNever) return 0;
    const double weight = weight_of(storage, use);
    const double own = weight * static_cast<double>(least_cost(graph_.storage(storage).op));
    return own >= enough ? own : weight * cost_of_making(storage);
  }

  double wait(Index use) const {
    const double until = std::max(begin_[use] - begin_[now_], 1.);
    if (options_.beta == 0) return 1;
    return options_.beta == 0.5 ? std::sqrt(until) : std::pow(until, options_.beta);
  }

  // Of a nanosecond that it takes to make it again.
  double weight_of(Index storage, Index use) const {
    const double weight = 1 / (static_cast<double>(graph_.storage(storage).bytes) * wait(use));
    const bool spans = !options_.factors.empty() && now_ <= options_.slot && use > options_.slot;
    return spans ? weight * options_.factors[storage] : weight;
  }

  Index next_use(Index storage) {
    State& of = storages_[storage];
    if (of.knows_use && of.next_use > now_) return of.next_use;
    Index use = direct_use(storage);
    for (std::size_t i = 0; i < of.next; ++i) {
      const Index reader = of.uses[i];
      if (reader >= graph_.operators() || is_loaded(reader)) continue;
      for (const Index made : graph_.makes(reader)) {
        if (!storages_[made].is_there && storages_[made].epoch > 0) {
          use = std::min(use, next_use(made));
        }
      }
    }
    of.knows_use = true;
    return of.next_use = use;
  }

  // Of what it was made from, which is needed when it is, if it is gone; and so on. Where a use is
  // not known, those that depend on it are not either.
  void forget_uses(Index storage) {
    open_.assign(1, storage);
    while (!open_.empty()) {
      const Index op = graph_.storage(open_.back()).op;
      open_.pop_back();
      for (const Index read : graph_.reads(op)) {
        const Index from = graph_.tensor(read).storage;
        if (!std::exchange(storages_[from].knows_use, false)) continue;
        if (!storages_[from].is_there) open_.push_back(from);
      }
    }
  }

  double cost_of_making(Index storage) {
    const Index op = graph_.storage(storage).op;
    const double cost = cost_of_running(op);
    return graph_.can_load(op) ? std::min(cost, static_cast<double>(load_price(op))) : cost;
  }

  // With what it reads and is gone; of that, what is loaded for less than its own cost is.
  double cost_of_running(Index op) {
    ++round_of_prices_;
    priced_[op] = round_of_prices_;
    open_.assign(1, op);
    double cost = 0;
    while (!open_.empty()) {
      const Index next = open_.back();
      open_.pop_back();
      cost += static_cast<double>(graph_.nanoseconds(next));
      for (const Index read : graph_.reads(next)) {
        const Index made_by = graph_.tensor(read).op;
        if (is_defined(read) || priced_[made_by] == round_of_prices_) continue;
        priced_[made_by] = round_of_prices_;
        if (is_loaded(made_by)) {
          cost += static_cast<double>(load_price(made_by));
        } else {
          open_.push_back(made_by);
        }
      }
    }
    return cost;
  }

  const StepGraph& graph_;
  const NextUseOptions& options_;
  GraphPlan plan_;
  std::vector<State> storages_;
  std::vector<std::uint32_t> defined_;  // of tensors: the epoch of its storage when it was made
  std::vector<std::uint32_t> visited_;  // of operators
  std::uint32_t round_of_visits_ = 0;
  std::vector<std::uint32_t> priced_;  // the same, of operators whose cost is added up
  std::uint32_t round_of_prices_ = 0;
  std::vector<double> begin_;  // nanoseconds before each operator, without recomputation
  std::vector<Candidate> candidates_;
  std::vector<Index> idle_;
  std::vector<Index> open_;
  std::int64_t live_ = 0;  // without what is fixed
  std::int64_t recompute_ = 0;
  Index now_ = 0;
};

}  // namespace

std::optional<GraphPlan> plan_by_next_use(const StepGraph& graph, const NextUseOptions& options) {
  return NextUseRun(graph, options).run();
}

}  // namespace reprise::plan
