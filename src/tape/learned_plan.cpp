#include "tape/learned_plan.h"

#include <utility>

namespace reprise {

struct LearnedPlan::Impl {
  plan::PlannedStep step;
};

LearnedPlan detail::LearnedPlanAccess::plan_of(plan::PlannedStep step) {
  return LearnedPlan(std::make_shared<LearnedPlan::Impl>(std::move(step)));
}

const std::shared_ptr<const plan::StepScript>& detail::LearnedPlanAccess::script_of(
    const LearnedPlan& plan) {
  return plan.impl_->step.script;
}

LearnedPlan LearnedPlan::read(const std::filesystem::path& file) {
  return detail::LearnedPlanAccess::plan_of(plan::read_planned_step(file));
}

LearnedPlan LearnedPlan::parse(std::string_view json, const std::string& origin) {
  return detail::LearnedPlanAccess::plan_of(plan::parse_planned_step(json, origin));
}

std::string LearnedPlan::json() const { return plan::json_of(impl_->step); }

void LearnedPlan::write(const std::filesystem::path& file) const {
  plan::write_planned_step(impl_->step, file);
}

LearnedPlan::Figures LearnedPlan::figures() const {
  return {impl_->step.limit, impl_->step.slowdown, impl_->step.bound};
}

std::uint64_t LearnedPlan::step() const { return impl_->step.script->hash(); }

std::int64_t LearnedPlan::operators() const {
  return static_cast<std::int64_t>(impl_->step.script->calls());
}

}  // namespace reprise
