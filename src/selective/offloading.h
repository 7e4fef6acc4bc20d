// The CPU_OFFLOAD policies: which store a result goes to, or why it cannot.
#pragma once

#include <ATen/core/function_schema.h>
#include <reprise/selective.h>
#include <reprise/store.h>

#include <memory>

namespace reprise::selecting {

// For the results of one call.
class Offloading {
 public:
  Offloading(const c10::FunctionSchema& schema, CheckpointPolicy policy,
             const std::shared_ptr<Store>& store)
      : schema_(schema), policy_(policy), store_(store) {}

  // Whether the policy says to offload at all.
  bool wanted() const {
    return policy_ == CheckpointPolicy::kMustCpuOffload ||
           policy_ == CheckpointPolicy::kPreferCpuOffload;
  }
  // Null where the tensor is to be kept instead, because it or its device is nothing for the store.
  // Throws UsageError where the policy must be obeyed
  // and cannot, and where there is no store for the tensor's device.
  std::shared_ptr<ParkedTensor> park(const at::Tensor& tensor) const;

 private:
  const c10::FunctionSchema& schema_;
  const CheckpointPolicy policy_;
  const std::shared_ptr<Store>& store_;
};

}  // namespace reprise::selecting
