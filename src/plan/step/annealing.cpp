#include "plan/step/annealing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "plan/step/plan_memory.h"

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;
using Run = PlanMemory::Run;

constexpr std::int64_t kLookEvery = 256;  // moves, at the price and the clock
// The first one begins anew, the others go on from the best.
constexpr int kRounds = 3, kFreshRounds = 1;

class Annealing {
 public:
  Annealing(const StepGraph& graph, const GraphPlan& plan, const AnnealingOptions& options)
      : graph_(graph),
        options_(options),
        memory_(graph, plan, options.budget),
        random_(options.seed),
        first_(plan),
        best_(plan) {
    for (Index op = 0; op < graph.operators(); ++op) {
      for (const Index slot : plan.slots[op]) note_added({op, slot, plan.is_load(op, slot)});
    }
    look_at_best();
  }

  GraphPlan run() {
    const double hottest = 0.3 / graph_.operators(), coldest = hottest / 300;
    const std::int64_t a_round = std::max<std::int64_t>(1, options_.moves / kRounds);
    for (std::int64_t move = 0; move < options_.moves; ++move) {
      if (move % a_round == 0) restart(move / a_round < kFreshRounds ? first_ : best_);
      if (move % kLookEvery == 0 && look()) break;
      const double part = static_cast<double>(move % a_round) / static_cast<double>(a_round);
      const auto later = std::max<std::int64_t>(0, move / a_round - kFreshRounds + 1);
      const double start = hottest / (1 + static_cast<double>(later));
      temperature_ = start * std::pow(coldest / start, part);
      step();
    }
    return best_;
  }

 private:
  struct Change {
    Run run;
    bool adds;
  };

  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  double chance() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  double price_of_excess() const {
    return price_ * static_cast<double>(memory_.excess()) / static_cast<double>(options_.budget);
  }
  double energy() const {
    return static_cast<double>(memory_.nanoseconds()) / static_cast<double>(graph_.nanoseconds()) +
           price_of_excess();
  }

  bool look() {
    constexpr double kCheapest = 1e-9, kDearest = 1e9;
    price_ = std::clamp(price_ * (memory_.excess() > 0 ? 1.05 : 0.96), kCheapest, kDearest);
    return options_.is_over && options_.is_over();
  }

  void look_at_best() {
    if (memory_.excess() > 0) return;
    if (best_cost_ && memory_.nanoseconds() >= *best_cost_) return;
    best_cost_ = memory_.nanoseconds();
    best_ = memory_.plan();
  }

  void restart(const GraphPlan& from) {
    for (Index op = 0; op < graph_.operators(); ++op) {
      const std::vector<Index> now = memory_.plan().slots[op];
      for (const Index slot : now) {
        const bool stays = std::binary_search(from.slots[op].begin(), from.slots[op].end(), slot) &&
                           from.is_load(op, slot) == memory_.plan().is_load(op, slot);
        if (!stays) remove({op, slot});
      }
      for (const Index slot : from.slots[op]) {
        if (!memory_.runs_in(op, slot)) add({op, slot, from.is_load(op, slot)});
      }
    }
    changes_.clear();
  }

  void step() {
    const double before = energy();
    changes_.clear();
    // Drawn first, so that a move is given up as soon as it costs more than could be accepted, even
    // if nothing were above the budget after it: most that add runs are, when it is cold.
    const double most_rise = -temperature_ * std::log1p(-chance());
    const double most_dearer = most_rise + price_of_excess();
    most_nanoseconds_ = static_cast<double>(memory_.nanoseconds()) +
                        most_dearer * static_cast<double>(graph_.nanoseconds());
    is_given_up_ = false;
    left_ = below(16) == 0 ? 48 : 12;
    const std::uint64_t kind = below(100);
    bool moved = false;
    if (kind < 35) {
      moved = remove_some();
    } else if (kind < 70) {
      moved = add_some();
    } else if (kind < 85) {
      moved = graph_.has_store() && below(2) == 0 ? turn_some() : shift_some();
    } else {
      moved = remove_some();
      moved = add_some() || moved;
    }
    if (!moved) return;
    if (!is_given_up_ && energy() - before <= most_rise) return look_at_best();
    while (!changes_.empty()) {
      const Change change = changes_.back();
      change.adds ? remove(change.run) : add(change.run);
      changes_.pop_back();
      changes_.pop_back();
    }
  }

  static std::uint64_t key(Run run) { return std::uint64_t{run.op} << 32 | run.slot; }
  void note_added(Run run) {
    place_[key(run)] = extra_.size();
    extra_.push_back(run);
  }
  void add(Run run) {
    memory_.add(run);
    note_added(run);
    changes_.push_back({run, true});
  }
  void remove(Run run) {
    memory_.remove(run);
    const auto found = place_.find(key(run));
    const std::size_t at = found->second;
    run.loads = extra_[at].loads;
    place_.erase(found);
    if (at + 1 != extra_.size()) {
      extra_[at] = extra_.back();
      place_[key(extra_[at])] = at;
    }
    extra_.pop_back();
    changes_.push_back({run, false});
  }

  bool remove_some() {
    if (extra_.empty()) return false;
    drop(extra_[below(extra_.size())]);
    return true;
  }

  // And what was run only for it.
  void drop(Run run) {
    remove(run);
    if (!run.loads) drop_inputs(run);
  }

  void drop_inputs(Run run) {
    for (const Index tensor : graph_.reads(run.op)) {
      const Index op = graph_.tensor(tensor).op;
      const std::size_t seen = memory_.run_seen(op, run.slot);
      if (seen == 0 || left_ == 0) continue;
      const Index slot = memory_.runs(op)[seen];
      const Run input{op, slot, memory_.plan().is_load(op, slot)};
      if (memory_.is_read(input)) continue;
      --left_;
      drop(input);
    }
  }

  // A slot that is fuller than most.
  Index full_slot() {
    Index fullest = static_cast<Index>(below(graph_.operators()));
    for (int i = 0; i < 24; ++i) {
      const auto slot = static_cast<Index>(below(graph_.operators()));
      if (memory_.bytes(slot) > memory_.bytes(fullest)) fullest = slot;
      if (memory_.bytes(fullest) > options_.budget && i > 8) break;
    }
    return fullest;
  }

  bool add_some() {
    if (graph_.storages() == 0) return false;
    const Index slot = full_slot();
    for (int i = 0; i < 24; ++i) {
      const auto storage = static_cast<Index>(below(graph_.storages()));
      const StepGraph::Storage& of = graph_.storage(storage);
      if (of.op >= slot || of.bytes == 0) continue;
      const std::size_t run = memory_.run_seen(of.op, slot);
      const PlanMemory::Interval& interval = memory_.intervals(storage)[run];
      if (interval.begin >= slot || interval.end <= slot) continue;
      const Index read = memory_.next_read(storage, run, slot + 1);
      if (read == 0 || memory_.runs_in(of.op, read)) continue;
      if (graph_.is_split() && !can_run_again(storage, run, slot, read)) continue;
      static constexpr double kDeeper[] = {0.2, 0.6, 0.9, 1};
      deeper_ = kDeeper[below(4)];
      run_again(of.op, read);
      return true;
    }
    return false;
  }

  // In a split step, where `read` is the next one after the slot.
  bool can_run_again(Index storage, std::size_t run, Index slot, Index read) const {
    if (graph_.storage(storage).op >= graph_.half() || read < graph_.half()) return false;
    if (!graph_.runs_again_once()) return true;
    return run == 0 &&
           (slot < graph_.half() || memory_.next_read(storage, run, graph_.half()) > slot);
  }

  // Where an operator runs again but once, it does so before all that the second half reads of it.
  // Whether the operator must run in the slot for that.
  bool moves_to(Index op, Index slot) {
    const std::vector<Index>& runs = memory_.runs(op);
    if (runs.size() == 1) return true;
    if (runs.back() <= slot) return false;
    remove({op, runs.back()});
    return true;
  }
  bool must_move(Index op, Index slot) const {
    return graph_.runs_again_once() && memory_.runs(op).size() > 1 &&
           memory_.runs(op).back() > slot;
  }

  // With what it reads, as long as the draw says so; else that stays until then.
  void run_again(Index op, Index slot) {
    is_given_up_ = is_given_up_ || static_cast<double>(memory_.nanoseconds()) > most_nanoseconds_;
    if (is_given_up_) return;
    if (graph_.is_split() && (op >= graph_.half() || slot < graph_.half())) return;
    if (graph_.runs_again_once() && !moves_to(op, slot)) return;
    if (left_ > 0) --left_;
    if (graph_.can_load(op) && below(2) == 0) {
      if (memory_.runs_in(op, slot)) return;
      add({op, slot, true});
      return view_again(op, slot);
    }
    for (const Index tensor : graph_.reads(op)) {
      const StepGraph::Tensor& input = graph_.tensor(tensor);
      if (must_move(input.op, slot)) {
        run_again(input.op, slot);
        continue;
      }
      if (input.op >= slot || memory_.runs_in(input.op, slot) || left_ == 0) continue;
      const Index made = graph_.storage(input.storage).op;
      const std::size_t seen = memory_.run_seen(made, slot);
      const PlanMemory::Interval& interval = memory_.intervals(input.storage)[seen];
      if (interval.end >= slot || chance() > deeper_) continue;
      run_again(input.op, slot);
    }
    if (memory_.runs_in(op, slot)) return;
    const std::int64_t then = memory_.nanoseconds() + graph_.nanoseconds(op);
    is_given_up_ = is_given_up_ || static_cast<double>(then) > most_nanoseconds_;
    if (is_given_up_) return;
    add({op, slot});
    view_again(op, slot);
  }

  // Views are of the old memory until they are made again.
  void view_again(Index op, Index slot) {
    for (const Index storage : graph_.makes(op)) {
      for (const Index tensor : graph_.tensors_on(storage)) {
        const Index view = graph_.tensor(tensor).op;
        if (view == op || view >= slot || memory_.runs_in(view, slot)) continue;
        const auto readers = graph_.readers(tensor);
        const bool is_read = std::any_of(readers.begin(), readers.end(), [&](Index reader) {
          return memory_.runs_in(reader, slot);
        });
        if (is_read) add({view, slot});
      }
    }
  }

  bool shift_some() {
    if (extra_.empty()) return false;
    const Run run = extra_[below(extra_.size())];
    const std::size_t seen = memory_.run_seen(run.op, run.slot);
    Index earliest = memory_.runs(run.op)[seen - 1] + 1;
    if (graph_.is_split()) earliest = std::max(earliest, graph_.half());
    Index latest = std::numeric_limits<Index>::max();
    for (const Index storage : graph_.makes(run.op)) {
      const Index read = memory_.next_read(storage, seen, run.slot);
      if (read != 0) latest = std::min(latest, read);
    }
    if (latest > graph_.operators() || latest < earliest) return false;
    const Index slot = graph_.runs_again_once() || below(2) == 0
                           ? latest
                           : earliest + static_cast<Index>(below(latest - earliest + 1));
    return shift_to(run, slot);
  }

  bool shift_to(Run run, Index slot) {
    if (slot == run.slot || memory_.runs_in(run.op, slot)) return false;
    remove(run);
    add({run.op, slot, run.loads});
    return true;
  }

  // From running again to loading, or back.
  bool turn_some() {
    if (extra_.empty()) return false;
    const Run run = extra_[below(extra_.size())];
    if (!graph_.can_load(run.op)) return false;
    remove(run);
    add({run.op, run.slot, !run.loads});
    if (!run.loads) drop_inputs(run);
    return true;
  }

  const StepGraph& graph_;
  const AnnealingOptions& options_;
  PlanMemory memory_;
  std::mt19937_64 random_;
  const GraphPlan first_;
  GraphPlan best_;
  std::optional<std::int64_t> best_cost_;
  std::vector<Run> extra_;
  std::unordered_map<std::uint64_t, std::size_t> place_;
  std::vector<Change> changes_;
  int left_ = 0;
  double deeper_ = 1;
  double price_ = 1e-3;
  double temperature_ = 0;
  // What the plan may cost after the move at hand.
  double most_nanoseconds_ = 0;
  bool is_given_up_ = false;
};

}  // namespace

GraphPlan anneal(const StepGraph& graph, const GraphPlan& plan, const AnnealingOptions& options) {
  return Annealing(graph, plan, options).run();
}

}  // namespace reprise::plan
