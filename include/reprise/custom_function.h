// Custom autograd functions inside selective regions.
//
// Policies (selective.h) see operators, and a torch::autograd::Function of one's own is none: they
// see what its forward() calls, one by one. Called through reprise::apply it is a unit that they
// can name:
//
//   at::Tensor y = reprise::apply<FusedNorm>(x, weight);          // instead of FusedNorm::apply
//   auto policy = reprise::save_matmuls() |
//                 reprise::OperatorPolicy{reprise::function_name<FusedNorm>()};
//
// In a selective region that keeps it, its results and what it saved for backward are kept, and the
// recomputation does not run it; else it is run again as a whole. What it draws from random
// generators is replayed either way. One that writes to memory it did not make (its arguments, a
// running statistic) is run again although the policy says kPreferSave, and refused with a
// UsageError for kMustSave. kPreferCpuOffload keeps it in memory. Outside of selective regions
// reprise::apply<FusedNorm> is FusedNorm::apply.
#pragma once

#include <c10/util/Type.h>
#include <reprise/detail/region_call.h>
#include <reprise/visit_tensors.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace reprise {

namespace detail {

// One call of a custom function, as compiled code sees it.
struct FunctionCall {
  // "autograd::FusedNorm".
  const std::string& name;
  // Runs it and stores the result.
  std::function<void()> run;
  // The tensors of the stored result.
  std::function<std::vector<at::Tensor>()> results;
  // Stores these as the result.
  std::function<void(std::vector<at::Tensor>)> answer;
};

void call_function(FunctionCall& call);

}  // namespace detail

// The name by which policies know it: "autograd::my::FusedNorm", with all its namespaces. A policy
// may also give its end, "autograd::FusedNorm".
template <class Function>
const std::string& function_name() {
  static const std::string name = std::string("autograd::") + c10::demangle_type<Function>();
  return name;
}

// Function::apply(args...). The result is a tensor or a vector of tensors.
template <class Function, class... Args>
auto apply(Args&&... args) {
  using Result = std::decay_t<decltype(Function::apply(std::forward<Args>(args)...))>;
  static_assert(
      std::is_same_v<Result, at::Tensor> || std::is_same_v<Result, std::vector<at::Tensor>>,
      "reprise::apply: Function::forward must return a tensor or a vector of tensors");
  Result result;
  detail::FunctionCall call{
      function_name<Function>(), [&] { result = Function::apply(std::forward<Args>(args)...); },
      [&] {
        std::vector<at::Tensor> tensors;
        visit_tensors(result, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
        return tensors;
      },
      [&](std::vector<at::Tensor> tensors) {
        if constexpr (std::is_same_v<Result, at::Tensor>) {
          result = std::move(tensors.at(0));
        } else {
          result = std::move(tensors);
        }
      }};
  detail::call_function(call);
  return result;
}

}  // namespace reprise
