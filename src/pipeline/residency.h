// Plans of residency for the mini-batches that a pipeline sees: each kind of mini-batch is measured
// and planned once.
#pragma once

#include <reprise/pipeline.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/step.h"

namespace reprise::pipeline {

// A plan is made for this. The samples are the first micro-batch, which no other one exceeds.
struct PlanRequest {
  PipelineSchedule schedule;
  Tensors input;   // of the first stage
  Tensors target;  // for step() alone
  // Makes the loss of the last stage's output; empty in forward().
  std::function<at::Tensor(const at::Tensor& output)> loss = {};
};

class ResidencyPlans {
 public:
  // Measures on the calling thread what it has not seen before. Throws UsageError and BudgetError as
  // reprise/pipeline.h says of PipelineOptions::bytes.
  std::shared_ptr<const PlannedResidency> plan_for(const Core& core, const PlanRequest& request);

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::shared_ptr<const PlannedResidency>>> known_;
};

}  // namespace reprise::pipeline
