// Batch normalization whose running statistics are gathered call by call, and updated by somebody
// else later.
//
// BatchNorm updates its running statistics in the operator that normalizes. Inside a
// BatchStatisticsScope that operator is given no running statistics. So it writes to nothing, and a
// recomputation of it has nothing to undo. What it normalized by goes to the scope's BatchStatistics.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <memory>
#include <vector>

#include "libtorch/base/thread_state.h"

namespace c10 {
struct FunctionSchema;
}  // namespace c10

namespace reprise::libtorch {

class BatchStatistics {
 public:
  // One call has normalized each channel by these.
  struct OfCall {
    double elements = 0;  // of each channel
    at::Tensor mean;
    at::Tensor
        inverse_deviation;  // 1 / sqrt(variance + epsilon), the variance being the biased one
    double epsilon = 0;
  };

  virtual ~BatchStatistics() = default;
  // Whether the statistics with this running mean are gathered. All others are updated as ever.
  virtual bool gathers(const at::Tensor& running_mean) const = 0;
  // Called on the thread that normalizes, but not for recomputations.
  virtual void gather(const at::Tensor& running_mean, OfCall call) = 0;
};

// In force on this thread, in the backwards that it runs, and in recomputations of regions that
// begin inside.
class BatchStatisticsScope {
 public:
  explicit BatchStatisticsScope(std::shared_ptr<BatchStatistics> statistics);

 private:
  ThreadStateScope in_force_;
  c10::impl::IncludeDispatchKeyGuard included_;
};

// Runs `call`, which makes an operator's call with the arguments on `stack`. If that is batch
// normalization in training whose statistics are gathered, it gets none. The kernel of
// operator_effects.cpp calls this.
void call_with_statistics(BatchStatistics& statistics, const c10::FunctionSchema& schema,
                          std::vector<c10::IValue>& stack, const std::function<void()>& call);

}  // namespace reprise::libtorch
