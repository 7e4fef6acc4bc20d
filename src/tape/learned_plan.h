// The way from the public LearnedPlan to the script that a step follows, and back.
#pragma once

#include <reprise/budget.h>

#include <memory>

#include "plan/step/planned_step.h"

namespace reprise::detail {

struct LearnedPlanAccess {
  static LearnedPlan plan_of(plan::PlannedStep step);
  static const std::shared_ptr<const plan::StepScript>& script_of(const LearnedPlan& plan);
};

}  // namespace reprise::detail
