// What a MemoryBudget has learned of a step that repeats: what to drop after which operator, and
// when to make it again. A job can begin with the plan of an earlier one.
//
//   if (const auto plan = budget.plan()) plan->write("step.plan.json");
//   ...
//   reprise::MemoryBudget budget{reprise::GiB(8)};
//   budget.use(reprise::LearnedPlan::read("step.plan.json"));
//
// A plan is of one step: the same operators on the same shapes in the same order. It decides only
// what goes first; a step that it does not fit is as right as without it, and slower.
//
// Plans are constant and cheap to copy; any thread may use one.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace reprise {

namespace plan {
struct StepScript;
}  // namespace plan

class LearnedPlan {
 public:
  struct Figures {
    Bytes limit;  // of the budget that it was made for
    // Of the step, in the planner's model: with what is run again, beside without; and what no plan
    // can be below, proven.
    double slowdown = 1, bound = 1;
  };
  LearnedPlan(Figures figures, std::shared_ptr<const plan::StepScript> script);

  // Throws UsageError "FILE:LINE: FIELD: reason" for a text that is not such a plan, or was changed
  // since it was written, and one that names the file and the reason if it cannot be read.
  static LearnedPlan read(const std::filesystem::path& file);
  static LearnedPlan parse(std::string_view json, const std::string& origin);
  std::string json() const;
  // Makes or replaces the file. Throws Error if it cannot be written as a whole.
  void write(const std::filesystem::path& file) const;

  const Figures& figures() const { return figures_; }
  // Of all its operators and what they read: equal for steps that are the same.
  std::uint64_t step() const;
  std::int64_t operators() const;

  const std::shared_ptr<const plan::StepScript>& script() const { return script_; }

 private:
  Figures figures_;
  std::shared_ptr<const plan::StepScript> script_;
};

}  // namespace reprise
