// Two walks through the plan: one that notes when each value is read last, one that writes.
#include "plan/step/step_script.h"

#include <algorithm>

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;

class ScriptWriter {
 public:
  ScriptWriter(const RecordedGraph& recorded, const GraphPlan& plan)
      : recorded_(recorded),
        graph_(recorded.graph),
        values_(recorded.values),
        runs_in_(graph_.operators() + 1),
        newest_(graph_.storages(), 0) {
    for (Index op = 0; op < graph_.operators(); ++op) {
      for (const Index slot : plan.slots[op]) runs_in_[slot].push_back(op);
    }
  }

  void write(StepScript& script) {
    note_reads();
    std::size_t run = 0;
    const auto end = [&] {
      for (const Instance& each : ends_[run]) {
        script.actions.push_back({each.is_last ? StepScript::Do::kForget : StepScript::Do::kDrop,
                                  values_[each.storage]});
      }
      ++run;
    };
    const auto close = [&] {
      script.begins.push_back(static_cast<std::uint32_t>(script.actions.size()));
    };
    for (Index slot = 0; slot < graph_.operators(); ++slot) {
      // What is behind a call's operator is done after the call.
      if (slot > 0 && recorded_.is_own(slot)) close();
      for (const Index op : runs_in_[slot]) {
        for (const Index storage : graph_.makes(op)) {
          script.actions.push_back({StepScript::Do::kMake, values_[storage]});
        }
        end();
      }
      if (recorded_.is_own(slot)) close();
      end();
    }
    if (graph_.operators() > 0) close();
  }

 private:
  struct Instance {
    Index storage = 0;
    std::size_t last_run = 0;
    bool is_kept = false;
    bool is_last = true;  // of its storage
  };

  void note_reads() {
    std::vector<Instance> instances;
    std::size_t run = 0;
    std::vector<bool> is_made(graph_.storages(), false);
    const auto make = [&](Index op) {
      for (const Index tensor : graph_.reads(op)) {
        instances[newest_[graph_.tensor(tensor).storage]].last_run = run;
      }
      for (const Index storage : graph_.makes(op)) {
        if (is_made[storage]) instances[newest_[storage]].is_last = false;
        is_made[storage] = true;
        newest_[storage] = instances.size();
        instances.push_back({.storage = storage, .last_run = run});
      }
      ++run;
    };
    for (Index slot = 0; slot <= graph_.operators(); ++slot) {
      for (const Index op : runs_in_[slot]) make(op);
      if (slot < graph_.operators()) make(slot);
    }
    for (const Index tensor : graph_.kept()) {
      instances[newest_[graph_.tensor(tensor).storage]].is_kept = true;
    }
    ends_.resize(run + 1);
    for (const Instance& each : instances) {
      if (!each.is_kept) ends_[each.last_run].push_back(each);
    }
  }

  const RecordedGraph& recorded_;
  const StepGraph& graph_;
  const std::vector<ValueNumber>& values_;
  std::vector<std::vector<Index>> runs_in_;
  std::vector<std::size_t> newest_;          // instance of each storage
  std::vector<std::vector<Instance>> ends_;  // by run
};

}  // namespace

void StepScript::note_named() {
  named.clear();
  for (const Action& action : actions) {
    if (action.value >= named.size()) named.resize(std::size_t{action.value} + 1, false);
    named[action.value] = true;
  }
}

StepScript script_of(const StepRecord& record, const RecordedGraph& graph, const GraphPlan& plan) {
  StepScript script;
  script.prefixes.reserve(record.calls.size());
  for (const StepRecord::Call& call : record.calls) script.prefixes.push_back(call.prefix);
  ScriptWriter(graph, plan).write(script);
  script.note_named();
  return script;
}

}  // namespace reprise::plan
