#include "libtorch/operators/batch_statistics.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <string_view>
#include <utility>

#include "libtorch/operators/operator_effects.h"

namespace reprise::libtorch {
namespace {

// The places of arguments, and of results, are the same in all of them.
constexpr std::size_t kInput = 0, kRunningMean = 3, kRunningVariance = 4, kTraining = 5,
                      kEpsilon = 7;
constexpr std::size_t kMean = 1, kInverseDeviation = 2;

bool is_batch_norm(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  return (name == "aten::native_batch_norm" || name == "aten::cudnn_batch_norm" ||
          name == "aten::miopen_batch_norm") &&
         schema.overload_name().empty();
}

std::shared_ptr<ThreadState> state_with(std::shared_ptr<BatchStatistics> statistics) {
  auto state = copy_of_current_state();
  state->statistics = std::move(statistics);
  return state;
}

}  // namespace

BatchStatisticsScope::BatchStatisticsScope(std::shared_ptr<BatchStatistics> statistics)
    : in_force_(state_with(std::move(statistics))), included_(keys_of_effects()) {}

void call_with_statistics(BatchStatistics& statistics, const c10::FunctionSchema& schema,
                          std::vector<c10::IValue>& stack, const std::function<void()>& call) {
  if (!is_batch_norm(schema)) return call();
  const auto argument = [&](std::size_t place) -> c10::IValue& {
    return stack[stack.size() - schema.arguments().size() + place];
  };
  const c10::IValue& given = argument(kRunningMean);
  if (!argument(kTraining).toBool() || !given.isTensor() || !given.toTensor().defined() ||
      !statistics.gathers(given.toTensor())) {
    return call();
  }
  const at::Tensor running_mean = given.toTensor();
  const at::Tensor& input = argument(kInput).toTensor();
  BatchStatistics::OfCall of_call;
  of_call.elements = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  of_call.epsilon = argument(kEpsilon).toDouble();
  argument(kRunningMean) = c10::IValue();
  argument(kRunningVariance) = c10::IValue();
  call();
  const ThreadState* const state = current_state();
  if (state != nullptr && state->recomputing) return;
  const auto results = torch::jit::last(stack, schema.returns().size());
  of_call.mean = results[kMean].toTensor().detach();
  of_call.inverse_deviation = results[kInverseDeviation].toTensor().detach();
  statistics.gather(running_mean, std::move(of_call));
}

}  // namespace reprise::libtorch
