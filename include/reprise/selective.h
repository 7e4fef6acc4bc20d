// Selective checkpointing: a region (reprise/checkpoint.h) that keeps the results of some operators
// and recomputes the rest.
//
//   CheckpointOptions options{.context = reprise::selective(reprise::save_matmuls())};
//   auto y = reprise::checkpoint(options, block, x);
//
// In forward a policy is asked about each operator call below autograd: about addmm, not about
// linear. Results that it says to save are kept, detached, until the recomputation reaches the same
// call. That call then gets the kept results and does not run. The policy is not asked again, and
// calls are matched in the order of forward.
//
// The semantics are those of create_selective_checkpoint_contexts in torch 2.15
// (torch/utils/checkpoint.py), except where this header says otherwise:
// - Kept results are freed when they have been used, and with the graph. So a region can be
//   recomputed once. A second backward over it (retain_graph, second derivatives) is a
//   DeterminismError, unless SelectiveOptions::reuse is set.
// - A kept result that was changed in place is recomputed for kPreferSave, and a DeterminismError
//   for kMustSave, unless SelectiveOptions::allow_cache_entry_mutation is set. A change that
//   follows at once, as the bias of nn::Linear, is kept with the result for kPreferSave.
// - A recomputation stops before results that only kPreferSave keeps and that lie after the last
//   tensor that f saves for backward. They are freed when forward ends.
// - A policy keeps what it names, whether or not backward reads it, so a region may take more bytes
//   than the plain step. For tanh(x W + 1) the plain step keeps only the result of tanh. A region
//   with save_matmuls() keeps x W and makes the result of tanh from it in backward.
// - Views, detach and other calls that only read or rearrange metadata are recomputed, which costs
//   nothing, unless the policy says kMustSave.
// - An operator that changes its arguments in place (batch_norm's running statistics too) cannot be
//   answered. kPreferSave recomputes it, and kMustSave is a UsageError.
// - One in-place draw is kept by kPreferSave: bernoulli_, a dropout mask on the CPU. It takes one
//   bit an element, from 32,768 elements on, since drawing takes ten times longer than unpacking.
//   Under a MemoryBudget, which packs masks itself, it is drawn again.
// - An operator with ordered effects (it prints, counts, sends) is kept under every policy but
//   kMustRecompute: see declare_ordered_effects() below.
// - Autocast's casts are recomputed: autocast caches them longer than a region lasts.
// - A kept operator that draws random numbers leaves the generator as if it had run, so later draws
//   are the same again. (torch leaves the generator where it was.)
// - If a recomputation makes other calls than forward, so that a call might get another call's
//   results (a router chose another expert), it is a DeterminismError that names the operator.
//   Skipped calls and additional calls of operators without kept results do no harm.
//
// A custom autograd function is one call to a policy if the program calls it through
// reprise::apply<Function>() (below).
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Type.h>
#include <reprise/bytes.h>
#include <reprise/checkpoint.h>
#include <reprise/detail/function_call.h>
#include <reprise/detail/region_call.h>
#include <reprise/detail/visit_tensors.h>

#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace reprise {

class Store;
namespace detail {
struct PolicyRule;
struct PolicyRuleAccess;
}  // namespace detail

// -- Names for parts of a computation, which policies, logs and error texts can refer to
//
//   auto y = reprise::named("attention", [&] { return attend(q, k, v); });
//   auto z = reprise::named("mlp", mlp_module, y);
//
// Nested names form a path, joined by dots: inside named("blocks.3", ...) the first call above has
// the path "blocks.3.attention", like torch::nn::Module::named_modules. A path belongs to the
// calling thread, and to autograd's threads for a backward that is called inside.

// The RAII form of named().
class NamedScope {
 public:
  // Throws UsageError if `name` is empty.
  explicit NamedScope(std::string_view name);
  ~NamedScope();
  NamedScope(const NamedScope&) = delete;
  NamedScope& operator=(const NamedScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs f(args...) under the name and returns its result. f may be anything that checkpoint() takes.
template <class F, class... Args>
auto named(std::string_view name, F&& f, Args&&... args) {
  NamedScope scope(name);
  return detail::call_plain(f, args...);
}

// The path in force on this thread; empty outside of any name.
std::string current_path();

// The path of `module` within `root`, as named_modules() gives it: "blocks.3.attention", or empty
// for the root itself. Throws UsageError if it is not one of root's modules.
std::string module_path(const torch::nn::Module& root, const torch::nn::Module& module);

// -- Policies

// A policy's answer for the results of one operator call. An operator that does not allow it
// (views, in-place operators) overrules kPrefer values; kMust values are obeyed or refused with a
// UsageError. To offload is to park in a store in forward and to load for the recomputation.
enum class CheckpointPolicy {
  kMustSave,
  kPreferSave,
  kMustRecompute,
  kPreferRecompute,
  kMustCpuOffload,
  kPreferCpuOffload,
};

// One operator call in forward, after it has run. Valid during the policy's call.
class SelectiveCheckpointContext {
 public:
  SelectiveCheckpointContext(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments,
                             at::ArrayRef<c10::IValue> results, std::int64_t call_index)
      : schema_(schema), arguments_(arguments), results_(results), call_index_(call_index) {}

  const c10::FunctionSchema& schema() const { return schema_; }
  // "aten::mm", or "autograd::MyFunction" for a custom autograd function.
  const std::string& op() const { return schema_.name(); }
  // Whether `name` names this operator: "mm", "aten::mm", "add.Tensor" or "aten::add.Tensor". A
  // name without an overload stands for all overloads.
  bool is(std::string_view name) const;
  at::ArrayRef<c10::IValue> arguments() const { return arguments_; }
  // Empty for a custom autograd function: the policy is asked before the function runs.
  at::ArrayRef<c10::IValue> results() const { return results_; }
  // The bytes of the results' elements.
  Bytes result_bytes() const;
  // Floating-point operations: 2mnk and the like for matrix products, convolutions and attention,
  // and one for each element of the results of any other operator.
  double flops() const;
  // How many calls of this operator the region made before this one.
  std::int64_t call_index() const { return call_index_; }
  // The path of names in force.
  std::string path() const { return current_path(); }

 private:
  const c10::FunctionSchema& schema_;
  at::ArrayRef<c10::IValue> arguments_;
  at::ArrayRef<c10::IValue> results_;
  std::int64_t call_index_;
};

// Which results a region keeps: an immutable value, cheap to copy, that any number of regions and
// threads can share.
class OperatorPolicy {
 public:
  using Function = std::function<CheckpointPolicy(const SelectiveCheckpointContext&)>;

  // The function is asked about each operator call. It may have state and may throw, which passes
  // through the region. Several threads may call it at once. Operators that it calls itself are not
  // asked about.
  OperatorPolicy(Function function);  // NOLINT(google-explicit-constructor)
  template <class F>
    requires std::is_invocable_r_v<CheckpointPolicy, F&, const SelectiveCheckpointContext&>
  OperatorPolicy(F function)  // NOLINT(google-explicit-constructor)
      : OperatorPolicy(Function(std::move(function))) {}
  // A function that returns bool: true is kMustSave, false kPreferRecompute, as in torch.
  template <class F>
    requires std::same_as<bool, std::invoke_result_t<F&, const SelectiveCheckpointContext&>>
  OperatorPolicy(F function)  // NOLINT(google-explicit-constructor)
      : OperatorPolicy(
            Function([f = std::move(function)](const SelectiveCheckpointContext& context) mutable {
              return f(context) ? CheckpointPolicy::kMustSave : CheckpointPolicy::kPreferRecompute;
            })) {}
  // Saves these operators (kMustSave, as in torch) and recomputes the others. Names are as in
  // SelectiveCheckpointContext::is(), or "autograd::Name" for a custom autograd function. Throws
  // UsageError for a name that LibTorch does not know.
  OperatorPolicy(std::vector<std::string> operators);  // NOLINT(google-explicit-constructor)
  OperatorPolicy(std::initializer_list<std::string_view> operators)
      : OperatorPolicy(std::vector<std::string>(operators.begin(), operators.end())) {}

  // Keeps what either policy keeps. The answer further right wins: kPreferRecompute,
  // kPreferCpuOffload, kPreferSave, kMustRecompute, kMustCpuOffload, kMustSave.
  friend OperatorPolicy operator|(const OperatorPolicy& a, const OperatorPolicy& b);

 private:
  friend struct detail::PolicyRuleAccess;
  explicit OperatorPolicy(std::shared_ptr<const detail::PolicyRule> rule)
      : rule_(std::move(rule)) {}

  std::shared_ptr<const detail::PolicyRule> rule_;
};

// Saves matrix products, which cost most for their bytes: mm, addmm, bmm, baddbmm, convolutions and
// scaled dot-product attention.
OperatorPolicy save_matmuls();

// Saves everything but these operators. The cheap ones are softmax and elementwise operators with
// one or a few operations an element.
OperatorPolicy save_all_but(std::vector<std::string> operators);
OperatorPolicy save_all_but_cheap();

// Saves in each region the results with the most SelectiveCheckpointContext::flops() a byte, as
// many as fit in `bytes`. The choice is greedy and made as forward runs: a result with more flops a
// byte replaces others. Throws UsageError for a negative number.
OperatorPolicy save_largest_cost_per_byte(Bytes bytes);

// Keeps products and activations, but nothing of the core of attention: neither its scores (the
// product of queries and keys) nor what scaling, masking, softmax and dropout make of them. This is
// "selective activation recomputation" (Korthikanti et al., arXiv:2205.05198, section 5).
// - Scores are recognized by the operator: a batched product whose result is larger than both of
//   its factors. Sums, elementwise products, copies, dropout and layer norms are recomputed
//   everywhere. Fused attention holds no scores, and its results are kept.
// - Bytes: a block of a transformer keeps 16 s b h elements and two masks of bits. In 16-bit types
//   this is less than the paper's 34 s b h bytes, since norms are recomputed too. Only the bits of
//   a dropout mask grow with the square of the time t: a t² b / 8 bytes for a heads.
// - Time: the recomputed product of queries and keys is t / (18 d + 3 t) / 2 of the step's
//   operations at width d; mask, softmax and dropout pass over the scores once more.
//   In blocks of width 256 with 4 heads and t = 1024, a step takes as long as the plain one if the
//   system gives large pages on request (docs/decisions.md, "Regions ask for large pages").
OperatorPolicy recompute_attention();

// Saves every n-th call of an operator: every_nth("mm", 2) keeps the 2nd, 4th, ... call of each
// region. Throws UsageError for n < 1 and for unknown operators.
OperatorPolicy every_nth(std::string_view op, std::int64_t n);

// Applies `policy` inside named parts, and recomputes (kPreferRecompute) elsewhere. A part matches
// if its path is `path`, ends with "." and `path`, or lies inside such a part: "attention" matches
// "blocks.3.attention.scores".
OperatorPolicy inside(std::string path, OperatorPolicy policy);

// Offloads what `policy` saves: kMustSave becomes kMustCpuOffload, kPreferSave kPreferCpuOffload.
OperatorPolicy offloading(OperatorPolicy policy);

// -- Regions with a policy

struct SelectiveOptions {
  // The store for kMustCpuOffload and kPreferCpuOffload. Without one, tensors of an accelerator
  // are parked in pinned host memory (host_store()), and offloading a CPU tensor is a UsageError.
  std::shared_ptr<Store> store = {};
  // Hold kept results until the graph is freed, so that the region can be recomputed any number of
  // times.
  bool reuse = false;
  // Accept kept results that were changed in place later, and use the changed values.
  bool allow_cache_entry_mutation = false;
  // Show kept results to the saved-tensor hooks around the region, as autograd shows what it saves:
  // the innermost SavedTensorHooksScope, SaveOnCpuScope or OffloadScope (or PyTorch's hooks in a
  // Python process) packs them in forward and unpacks them for the recomputation.
  // - The scope may stand around the region, around other regions that it is inside of, or in f.
  // - Results that the policy offloads go to its store instead, and the bits of a kept dropout mask
  //   stay. A custom function that is kept (below) saves its own tensors through the hooks as well.
  // - Results that hooks keep are recomputed or refused after a change in place, whatever
  //   allow_cache_entry_mutation says.
  // The default is false, which is what torch 2.15 does if nothing is said. The policy has chosen
  // these results to be there at once, and an offload policy names a store for them. Lossy hooks
  // would also change what the region is recomputed from, and not only what is read in backward.
  bool respect_saved_tensors_hooks = false;
};

// The value for CheckpointOptions::context.
std::function<RegionContexts()> selective(OperatorPolicy policy, SelectiveOptions options = {});

// The contexts of one region, as torch's function of this name returns them.
RegionContexts create_selective_checkpoint_contexts(OperatorPolicy policy,
                                                    SelectiveOptions options = {});

// -- Operators with ordered effects
//
// Some operators are called for what they do besides computing results: they print, count, send or
// advance an object. Such effects must happen once, in the program's order. A selective region
// keeps these operators' results and never runs them again, unless the policy answers
// kMustRecompute. Neither kPreferRecompute nor a byte limit overrules that. An offload policy moves
// their results to its store. A region without a policy runs everything again.
//
// Known without a declaration, as in torch 2.15: operators that take an object (a TorchBind class,
// but not packed weights), aten::_print, and the check behind linalg functions. In addition:
// operators that take no tensor and return nothing. Declare all others.
// - Operators that write to an argument or return a view of one run again, as do collectives.
// - The operator needs a kernel of its own (for CPU, CUDA or CompositeExplicitAutograd). One that
//   is made of other operators is seen as these.
// - A result that is changed in place later is a DeterminismError.
// - Inside a custom function (below) that runs again, the operator is kept too.
// - In a step of a MemoryBudget the operator's results stay, since it is never replayed.

// Says whether the operator has ordered effects, for the whole process. The name is as in
// SelectiveCheckpointContext::is(). In torch this is registered in torch.library. Call it before
// regions run. Throws UsageError for an unknown name, and for operators that write to arguments or
// return views.
void declare_ordered_effects(std::string_view op, bool has_effects = true);

// -- Custom autograd functions
//
// Policies see operators. A torch::autograd::Function of your own is no operator, so they see the
// calls inside its forward() one by one. Through reprise::apply it becomes one call with a name:
//
//   at::Tensor y = reprise::apply<FusedNorm>(x, weight);          // instead of FusedNorm::apply
//   auto policy = reprise::save_matmuls() |
//                 reprise::OperatorPolicy{reprise::function_name<FusedNorm>()};
//
// - A selective region that keeps the call keeps its results and what it saved for backward, and
//   the recomputation does not run it. Otherwise it runs again as a whole. Its random draws are
//   replayed either way.
// - A call that writes to memory it did not make (an argument, a running statistic) runs again for
//   kPreferSave, and is a UsageError for kMustSave. kPreferCpuOffload keeps it in memory.
// - In a step of a MemoryBudget on the CPU the call can be dropped and replayed as a whole, also
//   where forward() fills results through pointers. Its tensor arguments are pinned until it
//   returns. What it reads must be its arguments or made by it. What it saves for backward besides
//   arguments and results is restored by the operators that made it, or stays.
// - Its results stay to the end of their lives if it cannot be replayed: if it writes to an
//   argument, reads another tensor through an operator, or draws from another generator than the
//   CPU's default one. The same holds for arguments of other types than tensors, numbers,
//   enumerators, strings, c10::Scalar, c10::Device, and std::vector, optional, array, pair, tuple
//   and c10::ArrayRef of these.
//
// Anywhere else reprise::apply<FusedNorm> is FusedNorm::apply.

// The name by which policies know the function: "autograd::my::FusedNorm", with all namespaces. A
// policy may also give the end of the name, "autograd::FusedNorm".
template <class Function>
const std::string& function_name() {
  static const std::string name = std::string("autograd::") + c10::demangle_type<Function>();
  return name;
}

// Runs Function::apply(args...). Its result must be a tensor or a vector of tensors.
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
