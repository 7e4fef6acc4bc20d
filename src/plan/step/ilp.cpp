#include "plan/step/ilp.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "plan/step/mixed_integer.h"

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;
using Variable = MixedIntegerProgram::Variable;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

class Formulation {
 public:
  Formulation(const StepGraph& graph, std::int64_t budget)
      : graph_(graph), budget_(budget), slots_(graph.operators() + 1) {
    for (Index slot = 0; slot < slots_; ++slot) add_slot();
    for (Index slot = 0; slot < slots_; ++slot) constrain(slot);
  }

  IlpResult solve(double seconds) const {
    const MixedIntegerProgram::Solution solution = program_.solve(seconds);
    IlpResult result;
    result.is_infeasible = solution.is_infeasible;
    // All operators run once in any case.
    const auto base = static_cast<double>(graph_.nanoseconds());
    result.bound_nanoseconds = std::max(0., solution.bound / scale() - base);
    if (!solution.is_found) return result;
    result.plan.emplace(graph_);
    for (Index slot = 0; slot < slots_; ++slot) {
      for (Index op = 0; op < std::min(slot, graph_.operators()); ++op) {
        const bool loads = can_load(op, slot) && is_set(solution, loads_[slot][op]);
        if (loads) result.plan->loads[op].push_back(slot);
        if (loads || is_set(solution, runs_[slot][op])) result.plan->slots[op].push_back(slot);
      }
    }
    return result;
  }

 private:
  using Terms = std::vector<MixedIntegerProgram::Term>;

  static bool is_set(const MixedIntegerProgram::Solution& solution, Variable variable) {
    return solution.values[static_cast<std::size_t>(variable)] > 0.5;
  }
  // Loads come after the operator's own slot.
  bool can_load(Index op, Index slot) const { return op < slot && graph_.can_load(op); }
  double transfer(Index op) const {
    return scale() * static_cast<double>(graph_.transfer_nanoseconds(op));
  }
  // What makes the operator's results be there: its run, or their load.
  void add_makers(Index slot, Index op, double factor, Terms& terms) const {
    terms.push_back({runs_[slot][op], factor});
    if (can_load(op, slot)) terms.push_back({loads_[slot][op], factor});
  }

  // Figures near 1, for the solver's tolerances.
  double scale() const { return 1 / std::max(1., static_cast<double>(graph_.nanoseconds())); }
  double share(std::int64_t bytes) const {
    return static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(budget_, 1));
  }
  Index last_op(Index slot) const { return std::min(slot, graph_.operators() - 1); }

  // Variables of the next slot.
  void add_slot() {
    const auto slot = static_cast<Index>(runs_.size());
    std::vector<Variable>& runs = runs_.emplace_back();
    for (Index op = 0; op <= last_op(slot); ++op) {
      runs.push_back(program_.binary(scale() * static_cast<double>(graph_.nanoseconds(op))));
      if (op == slot) program_.fix(runs.back(), 1);
    }
    std::vector<Variable>& loads = loads_.emplace_back();
    for (Index op = 0; op <= last_op(slot) && graph_.has_store(); ++op) {
      loads.push_back(can_load(op, slot) ? program_.binary(transfer(op)) : Variable{});
    }
    if (graph_.has_store() && slot < graph_.operators()) {
      stored_.push_back(graph_.can_load(slot) ? program_.binary(transfer(slot)) : Variable{});
    }
    std::vector<Variable>& there = there_.emplace_back();
    for (Index tensor = 0; tensor < graph_.tensors(); ++tensor) {
      there.push_back(program_.binary());
      // Nothing is there before it was first made.
      if (graph_.tensor(tensor).op >= slot) program_.fix(there.back(), 0);
    }
  }

  void constrain(Index slot) {
    for (Index op = 0; op <= last_op(slot); ++op) {
      for (const Index read : graph_.reads(op)) {
        // R[op] <= R[maker] + S[read]
        Terms terms{{runs_[slot][op], 1}, {there_[slot][read], -1}};
        add_makers(slot, graph_.tensor(read).op, -1, terms);
        program_.row(-kInfinite, terms, 0);
      }
      // What is loaded was stored.
      if (can_load(op, slot)) {
        program_.row(-kInfinite, {{loads_[slot][op], 1}, {stored_[op], -1}}, 0);
      }
    }
    for (Index tensor = 0; tensor < graph_.tensors(); ++tensor) {
      const Index op = graph_.tensor(tensor).op;
      if (op >= slot) continue;
      // S <= R + S of the slot before; and what is there is not made again.
      Terms from{{there_[slot][tensor], 1}, {there_[slot - 1][tensor], -1}};
      add_makers(slot - 1, op, -1, from);
      program_.row(-kInfinite, from, 0);
      Terms ways{{there_[slot][tensor], 1}};
      add_makers(slot, op, 1, ways);
      program_.row(-kInfinite, ways, 1);
      const Index base = graph_.tensors_on(graph_.tensor(tensor).storage).front();
      if (base != tensor) {
        program_.row(-kInfinite, {{there_[slot][tensor], 1}, {there_[slot][base], -1}}, 0);
      }
      if (slot == graph_.operators() && graph_.is_kept(tensor)) {
        program_.row(1, ways, kInfinite);
      }
    }
    follow_memory(slot);
  }

  bool is_kept_storage(Index storage) const {
    const auto tensors = graph_.tensors_on(storage);
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](Index tensor) { return graph_.is_kept(tensor); });
  }

  // Operators up to the slot's last that make the storage or read it, in order.
  std::vector<Index> users(Index storage, Index slot) const {
    std::vector<Index> all{graph_.storage(storage).op};
    for (const Index tensor : graph_.tensors_on(storage)) {
      for (const Index reader : graph_.readers(tensor)) all.push_back(reader);
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::erase_if(all, [&](Index op) { return op > last_op(slot); });
    return all;
  }

  void follow_memory(Index slot) {
    // By operator, what goes after it.
    std::vector<std::vector<MixedIntegerProgram::Term>> goes(graph_.operators());
    for (Index storage = 0; storage < graph_.storages(); ++storage) {
      const double bytes = share(graph_.storage(storage).bytes);
      const bool stays = slot == graph_.operators() && is_kept_storage(storage);
      if (bytes == 0 || stays) continue;
      const std::vector<Index> all = users(storage, slot);
      for (std::size_t k = 0; k < all.size(); ++k) {
        goes[all[k]].push_back({goes_after(slot, storage, all, k), bytes});
      }
    }
    MixedIntegerProgram::Term before{program_.real(0, 1), -1};
    std::vector<MixedIntegerProgram::Term> begin{{before.variable, 1}};
    for (Index storage = 0; storage < graph_.storages(); ++storage) {
      const Index base = graph_.tensors_on(storage).front();
      begin.push_back({there_[slot][base], -share(graph_.storage(storage).bytes)});
    }
    const double constant = share(graph_.fixed_bytes(slot));
    program_.row(constant, begin, constant);
    for (Index op = 0; op <= last_op(slot); ++op) {
      // U[op] - U[op - 1] - made * R[op] + gone after op - 1 = 0
      const Variable live = program_.real(0, 1);
      double made = 0;
      for (const Index storage : graph_.makes(op)) made += share(graph_.storage(storage).bytes);
      Terms terms{{live, 1}, before};
      add_makers(slot, op, -made, terms);
      if (op > 0) terms.insert(terms.end(), goes[op - 1].begin(), goes[op - 1].end());
      program_.row(0, terms, 0);
      before.variable = live;
    }
  }

  // 1 if the k-th of the users runs, none after it does, and the next slot finds nothing there.
  Variable goes_after(Index slot, Index storage, const std::vector<Index>& users, std::size_t k) {
    const Variable goes = program_.binary();
    // Reasons against it: (1 - R[k]) + S of the next slot + later R.
    Terms against;
    if (k == 0) {
      add_makers(slot, users[k], -1, against);  // at most one of them is 1
    } else {
      against.push_back({runs_[slot][users[k]], -1});
    }
    const auto makers = std::ssize(against);
    if (slot + 1 < slots_) {
      against.push_back({there_[slot + 1][graph_.tensors_on(storage).front()], 1});
    }
    for (std::size_t later = k + 1; later < users.size(); ++later) {
      against.push_back({runs_[slot][users[later]], 1});
    }
    const auto most = static_cast<double>(std::ssize(against) - makers + 1);
    // 1 - goes <= reasons <= most * (1 - goes)
    against.push_back({goes, 1});
    program_.row(0, against, kInfinite);
    against.back().factor = most;
    program_.row(-kInfinite, against, most - 1);
    return goes;
  }

  const StepGraph& graph_;
  const std::int64_t budget_;
  const Index slots_;
  MixedIntegerProgram program_;
  std::vector<std::vector<Variable>> runs_, loads_, there_;  // by slot and operator, or tensor
  std::vector<Variable> stored_;                             // by operator
};

}  // namespace

IlpResult plan_by_ilp(const StepGraph& graph, std::int64_t budget, double seconds) {
  for (StepGraph::Index slot = 0; slot <= graph.operators(); ++slot) {
    if (graph.fixed_bytes(slot) > budget) return {.plan = {}, .is_infeasible = true};
  }
  if (graph.operators() == 0) return {.plan = GraphPlan(graph)};
  return Formulation(graph, budget).solve(seconds);
}

}  // namespace reprise::plan
