// A plan in the form in which a running step follows it: before and after each call, which values
// are made again and which are not needed for now, or for good.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/step/graph_plan.h"
#include "plan/step/step_record.h"

namespace reprise::plan {

struct StepScript {
  enum class Do : std::uint8_t {
    kMake,    // the value has to be there again
    kDrop,    // it may go until it is made again
    kForget,  // it may go for good
  };
  struct Action {
    Do what;
    ValueNumber value;
    bool operator==(const Action&) const = default;
  };

  std::vector<std::uint64_t> prefixes;  // of each call
  std::vector<Action> actions;
  // Two for each call, and one for the end: where the actions before it and after it begin.
  std::vector<std::uint32_t> begins{0};
  std::vector<bool> named;  // by value, those that it speaks of

  std::size_t calls() const { return prefixes.size(); }
  std::uint64_t hash() const { return prefixes.empty() ? 0 : prefixes.back(); }
  std::span<const Action> before(std::size_t call) const { return part(2 * call); }
  std::span<const Action> after(std::size_t call) const { return part(2 * call + 1); }
  bool speaks_of(ValueNumber value) const { return value < named.size() && named[value]; }
  // When all actions are there.
  void note_named();
  bool operator==(const StepScript&) const = default;

 private:
  std::span<const Action> part(std::size_t part) const {
    return std::span(actions).subspan(begins[part], begins[part + 1] - begins[part]);
  }
};

StepScript script_of(const StepRecord& record, const RecordedGraph& graph, const GraphPlan& plan);

}  // namespace reprise::plan
