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
// UsageError for kMustSave. kPreferCpuOffload keeps it in memory.
//
// In a step of a MemoryBudget on the CPU the call can be dropped and run again as a whole, as an
// operator's: results that forward() fills through pointers need no operator that has made them.
// Its tensor arguments have their bytes, and keep them, until it returns. What it reads must be its
// arguments or made by it. It is not run again (such results then stay to the end of their lives)
// where it writes to an argument or reads another tensor through an operator; where an argument is
// neither a tensor, a number, an enumerator, a string, a c10::Scalar or c10::Device nor made of
// such (std::vector, optional, array, pair, tuple, c10::ArrayRef); or where it draws from another
// generator than the CPU's default one. What it saves for backward besides arguments and results
// comes back by the operators that made it, or stays.
//
// Elsewhere reprise::apply<FusedNorm> is FusedNorm::apply.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Type.h>
#include <reprise/detail/region_call.h>
#include <reprise/visit_tensors.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::autograd {
struct AutogradContext;
}

namespace reprise {

namespace detail {

// Types whose copies hold nothing that could change or end meanwhile.
template <class T>
struct IsLasting : std::bool_constant<std::is_arithmetic_v<T> || std::is_enum_v<T>> {};
template <>
struct IsLasting<at::Tensor> : std::true_type {};
template <>
struct IsLasting<std::string> : std::true_type {};
template <>
struct IsLasting<c10::Scalar> : std::true_type {};
template <>
struct IsLasting<c10::Device> : std::true_type {};
template <>
struct IsLasting<std::nullopt_t> : std::true_type {};
template <class T>
struct IsLasting<std::vector<T>> : IsLasting<T> {};
template <class T>
struct IsLasting<std::optional<T>> : IsLasting<T> {};
template <class T, std::size_t N>
struct IsLasting<std::array<T, N>> : IsLasting<T> {};
template <class... Ts>
struct IsLasting<std::tuple<Ts...>> : std::conjunction<IsLasting<Ts>...> {};
template <class A, class B>
struct IsLasting<std::pair<A, B>> : std::conjunction<IsLasting<A>, IsLasting<B>> {};

template <class Function, class... Kept>
concept RunsAgain = (IsLasting<Kept>::value && ...) &&
                    requires(torch::autograd::AutogradContext* context, Kept&... kept) {
                      Function::forward(context, kept...);
                    };

// Runs a function on these tensors in place of its arguments'.
using FunctionAgain = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

template <class Function, class... Args>
FunctionAgain keep_function(std::vector<at::Tensor>& tensors, const Args&... args) {
  if constexpr (RunsAgain<Function, typename Stored<Args>::type...>) {
    std::tuple<typename Stored<Args>::type...> kept(stored(args)...);
    const auto visit = [](auto& arguments, const auto& f) {
      std::apply([&](auto&... each) { (visit_tensors(each, f), ...); }, arguments);
    };
    visit(kept, [&](at::Tensor& tensor) {
      tensors.push_back(std::move(tensor));
      tensor = at::Tensor();
    });
    return [kept = std::move(kept), visit](std::vector<at::Tensor> given) {
      auto arguments = kept;
      std::size_t next = 0;
      visit(arguments, [&](at::Tensor& tensor) { tensor = std::move(given[next++]); });
      auto result = std::apply([](auto&... each) { return Function::apply(each...); }, arguments);
      std::vector<at::Tensor> results;
      visit_tensors(result, [&](at::Tensor& tensor) { results.push_back(std::move(tensor)); });
      return results;
    };
  } else {
    const auto add = [&](const auto& argument) {
      using Argument = std::remove_cvref_t<decltype(argument)>;
      if constexpr (holds_tensors<Argument> && std::is_copy_constructible_v<Argument>) {
        Argument copy = argument;
        visit_tensors(copy, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
      }
    };
    (add(args), ...);
    return {};
  }
}

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
  // Before it is run: what runs it again, without the tensors of its arguments, which are appended.
  // Empty where it cannot be run again.
  std::function<FunctionAgain(std::vector<at::Tensor>& arguments)> keep;
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
      },
      [&](std::vector<at::Tensor>& tensors) {
        return detail::keep_function<Function>(tensors, args...);
      }};
  detail::call_function(call);
  return result;
}

}  // namespace reprise
