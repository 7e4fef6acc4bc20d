// A call of a custom autograd function with its arguments, packed so that compiled code can run it
// again: the part of reprise::apply() that must be a template. Not for direct use.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <reprise/detail/region_call.h>
#include <reprise/detail/visit_tensors.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
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

}  // namespace reprise
