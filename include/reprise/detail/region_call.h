// The part of checkpoint() that must be a template: a function and its arguments, packed so that
// the compiled region code (src/region) can run them a first time and again. Not for direct use.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <reprise/detail/visit_tensors.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10 {
struct IValue;
}
namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace reprise {

struct CheckpointOptions;

namespace detail {

struct GroupState;

// Most regions have one or two tensor arguments.
using Tensors = c10::SmallVector<at::Tensor, 4>;

// A call that a region can run: the first time on the arguments as given, later on recomputed
// tensors.
class RegionCall {
 public:
  virtual ~RegionCall() = default;
  // Runs on the stored arguments and stores the result.
  virtual void run_first() = 0;
  // Runs on copies of the arguments that hold `tensors`, in visiting order. The results' tensors
  // are appended to `results` where that is not null; everything else of the result is dropped. May
  // return, instead of throwing, where the region left the function early.
  virtual void run_again(Tensors& tensors, Tensors* results) = 0;
  // The tensors of the stored arguments, and of the stored result.
  virtual void visit_arguments(const std::function<void(at::Tensor&)>& f) = 0;
  virtual void visit_result(const std::function<void(at::Tensor&)>& f) = 0;
  // The result will not be taken: keeping it would tie the region to its own graph.
  virtual void drop_result() = 0;
};

// Runs `call` once, as a region: afterwards its result can be taken, and its arguments hold no
// tensors.
void run_region(const CheckpointOptions& options, const std::shared_ptr<RegionCall>& call);
// Throws UsageError for options that exclude each other.
void check_options(const CheckpointOptions& options);
const CheckpointOptions& default_options();

// TorchScript's optimizing executor saves other tensors in a second run than in the first; inside
// this scope it is off for the calling thread.
class PlainScriptExecutor {
 public:
  PlainScriptExecutor();
  ~PlainScriptExecutor();
  PlainScriptExecutor(const PlainScriptExecutor&) = delete;
  PlainScriptExecutor& operator=(const PlainScriptExecutor&) = delete;

 private:
  bool optimize_before_;
};

template <class A>
const A& pass(const A& argument) {
  return argument;
}
template <class A>
A& pass(const std::reference_wrapper<A>& argument) {
  return argument.get();
}

template <class F>
inline constexpr bool is_script_module = std::is_same_v<F, torch::jit::Module>;

template <class F>
F& pass_function(F& function) {
  return function;
}
template <class F>
F& pass_function(const std::reference_wrapper<F>& function) {
  return function.get();
}
template <class F>
F& pass_function(std::reference_wrapper<F>& function) {
  return function.get();
}

// A function that several calls have in common.
template <class F>
struct SharedFunction {
  std::shared_ptr<F> function;
};
template <class F>
auto& pass_function(SharedFunction<F>& shared) {
  return pass_function(*shared.function);
}

// Views into somebody else's memory would dangle in backward: the region keeps what they refer to.
template <class A>
struct Stored {
  using type = A;
};
template <class T>
struct Stored<c10::ArrayRef<T>> {
  using type = std::vector<T>;
};
template <class T, std::size_t N>
struct Stored<std::span<T, N>> {
  using type = std::vector<std::remove_cv_t<T>>;
};
template <>
struct Stored<std::string_view> {
  using type = std::string;
};

template <class A>
typename Stored<A>::type stored(const A& argument)
  requires(!std::same_as<typename Stored<A>::type, A>)
{
  return {argument.begin(), argument.end()};
}
template <class A>
A&& stored(A&& argument)
  requires std::same_as<typename Stored<std::remove_cvref_t<A>>::type, std::remove_cvref_t<A>>
{
  return std::forward<A>(argument);
}

// Calls a function or a module. `F` may be a reference_wrapper or a plain function. A module holder
// is asked for its module's forward(): its own operator() does not know the result type of a
// Sequential.
template <class F, class... Args>
auto call_plain(F& f, const Args&... args) {
  if constexpr (std::is_function_v<F>) {
    F* const pointer = &f;
    return call_plain(pointer, args...);
  } else {
    auto& function = pass_function(f);
    using Function = std::remove_reference_t<decltype(function)>;
    if constexpr (is_script_module<std::remove_cv_t<Function>>) {
      PlainScriptExecutor plain;
      return function.forward(std::vector<c10::IValue>{args...});
    } else if constexpr (requires { function->forward(pass(args)...); }) {
      return function->forward(pass(args)...);
    } else if constexpr (std::invocable<Function&, decltype(pass(args))...>) {
      return std::invoke(function, pass(args)...);
    } else {
      static_assert(
          requires { function.forward(pass(args)...); },
          "checkpoint(f, args...): f cannot be called with const lvalues of these arguments "
          "(use std::ref for an argument that f changes)");
      return function.forward(pass(args)...);
    }
  }
}

template <class F, class... Args>
class Call final : public RegionCall {
  using Result = decltype(call_plain(std::declval<F&>(), std::declval<const Args&>()...));
  static constexpr bool kVoid = std::is_void_v<Result>;

 public:
  template <class G, class... As>
  explicit Call(std::in_place_t, G&& f, As&&... args)
      : function_(std::forward<G>(f)), arguments_(std::forward<As>(args)...) {}

  void run_first() override {
    std::apply(
        [this](const auto&... args) {
          if constexpr (kVoid) {
            call_plain(function_, args...);
          } else {
            result_.emplace(call_plain(function_, args...));
          }
        },
        arguments_);
  }

  void run_again(Tensors& tensors, Tensors* results) override {
    std::size_t next = 0;
    std::apply(
        [&](const auto&... args) {
          // Braces: the arguments are filled from left to right.
          const std::tuple<Filled<std::remove_cvref_t<decltype(args)>>...> filled{
              refill(args, tensors, next)...};
          std::apply([&](const auto&... again) { run_on(results, again...); }, filled);
        },
        arguments_);
  }

  void visit_arguments(const std::function<void(at::Tensor&)>& f) override {
    std::apply([&](auto&... args) { (visit_tensors(args, f), ...); }, arguments_);
  }

  void visit_result(const std::function<void(at::Tensor&)>& f) override {
    if constexpr (!kVoid) visit_tensors(*result_, f);
  }

  void drop_result() override {
    if constexpr (!kVoid) result_.reset();
  }

  Result take_result() {
    if constexpr (!kVoid) {
      Result result = std::move(*result_);
      result_.reset();
      return result;
    }
  }

 private:
  // Arguments with tensors are copied for each run; the others, which may be move-only, are
  // referred to.
  template <class A>
  using Filled = std::conditional_t<holds_tensors<A>, A, const A&>;

  template <class A>
  static Filled<A> refill(const A& stored, Tensors& tensors, std::size_t& next) {
    if constexpr (std::same_as<A, at::Tensor>) {
      return std::move(tensors[next++]);
    } else if constexpr (holds_tensors<A>) {
      A copy = stored;
      visit_tensors(copy, [&](at::Tensor& tensor) { tensor = std::move(tensors[next++]); });
      return copy;
    } else {
      return stored;
    }
  }

  template <class... Filleds>
  void run_on(Tensors* results, const Filleds&... args) {
    if constexpr (kVoid) {
      call_plain(function_, args...);
    } else {
      auto result = call_plain(function_, args...);
      if (results != nullptr) {
        visit_tensors(result, [&](at::Tensor& tensor) { results->push_back(tensor); });
      }
    }
  }

  F function_;
  std::tuple<Args...> arguments_;
  std::conditional_t<kVoid, char, std::optional<Result>> result_{};
};

// A module given as an lvalue object is referred to: copying one copies its registry, not its
// identity.
template <class F>
inline constexpr bool is_module_object =
    std::is_lvalue_reference_v<F> &&
    std::is_convertible_v<std::remove_cvref_t<F>*, torch::nn::Module*>;

template <class F>
using StoredFunction =
    std::conditional_t<is_module_object<F>, std::reference_wrapper<std::remove_reference_t<F>>,
                       std::decay_t<F>>;

template <class F, class... Args>
auto make_call(F&& f, Args&&... args) {
  return std::make_shared<Call<StoredFunction<F>, typename Stored<std::decay_t<Args>>::type...>>(
      std::in_place, std::forward<F>(f), stored(std::forward<Args>(args))...);
}

}  // namespace detail
}  // namespace reprise
