// TorchScript profiles a function in its first runs and runs an optimised, differently
// differentiated form of it later. A region needs both of its runs to be alike.

#include <reprise/detail/region_call.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

namespace reprise::detail {

PlainScriptExecutor::PlainScriptExecutor()
    : optimize_before_(torch::jit::getGraphExecutorOptimize()) {
  torch::jit::setGraphExecutorOptimize(false);
}

PlainScriptExecutor::~PlainScriptExecutor() {
  torch::jit::setGraphExecutorOptimize(optimize_before_);
}

}  // namespace reprise::detail
