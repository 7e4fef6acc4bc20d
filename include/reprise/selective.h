// Selective checkpointing: a region that keeps the results of some operators and recomputes the
// rest.
//
//   CheckpointOptions options{.context = reprise::selective(reprise::save_matmuls())};
//   auto y = reprise::checkpoint(options, block, x);
//
// In forward a policy is asked about each operator call below autograd (so about addmm, not about
// linear); what it says to save is kept, detached, until the recomputation meets the same call
// again, which is then answered instead of run. The policy is not asked again. Calls are matched in
// the order of forward. The semantics are those of torch 2.13's
// create_selective_checkpoint_contexts (torch/utils/checkpoint.py), where this file says nothing
// else:
// - Kept results are freed when they have been used, and with the graph. So a region can be
//   recomputed once: a second backward over it (retain_graph, second derivatives) is a
//   DeterminismError, unless SelectiveOptions::reuse.
// - A result that was changed in place after it was kept is recomputed (kPreferSave; but a change
//   that follows at once, as the bias of nn::Linear, is kept with it), or a DeterminismError
//   (kMustSave, and so a list of operators) unless SelectiveOptions::allow_cache_entry_mutation.
// - What kPreferSave keeps after the last tensor that f saves for backward is freed when forward
//   ends: a recomputation stops before it.
// - A policy keeps what it names, whether or not backward reads it. So a region may take more bytes
//   than the plain step: for tanh(x W + 1) the plain step keeps tanh's result alone, while a region
//   with save_matmuls() keeps the product x W and makes tanh's result from it in backward.
// - What only rearranges or reads metadata (views, detach) is recomputed, which costs nothing,
//   unless the policy says kMustSave.
// - An operator that changes its arguments in place (batch_norm's running statistics among them)
//   cannot be answered: kPreferSave then recomputes, kMustSave is a UsageError. One draw is an
//   exception: kPreferSave keeps what bernoulli_ draws (a dropout mask on the CPU) as one bit an
//   element, if there are 32,768 or more, for drawing takes ten times longer than unpacking. Under
//   a MemoryBudget, which packs masks itself, it is drawn again.
// - Casts that autocast makes are recomputed: it caches them longer than a region lasts.
// - A kept operator that draws random numbers leaves the generator as if it had run, so that what
//   is drawn after it is drawn again the same. (torch leaves it where it was.)
// - A recomputation that makes other calls than forward did, so that an answer might be that of
//   another call (a router chose another expert), is a DeterminismError that names the operator.
//   Calls that are left out, and ones of operators without kept results, do no harm.
//
// Custom autograd functions are asked about as a whole where they are called through
// reprise::apply<Function>() (custom_function.h).
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

// Names for parts of a computation: what policies, logs and error texts can refer to.
//
//   auto y = reprise::named("attention", [&] { return attend(q, k, v); });
//   auto z = reprise::named("mlp", mlp_module, y);
//
// Names nest to a path, joined by dots: inside named("blocks.3", ...) the first call above has the
// path "blocks.3.attention", like the paths of modules (torch::nn::Module::named_modules). A path
// belongs to the calling thread, and goes along to autograd's threads for a backward that is called
// inside.

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

// Runs f(args...) under the name and returns its result. f: anything that checkpoint() takes.
template <class F, class... Args>
auto named(std::string_view name, F&& f, Args&&... args) {
  NamedScope scope(name);
  return detail::call_plain(f, args...);
}

// The path in force on this thread; empty outside of any name.
std::string current_path();

// The path of `module` within `root`, as named_modules() gives it: "blocks.3.attention"; empty for
// the root itself. Throws UsageError if it is not one of root's modules.
std::string module_path(const torch::nn::Module& root, const torch::nn::Module& module);

// What to do with the results of one operator call. PREFER_ values may be overruled where the
// operator does not allow it (views, in-place operators); MUST_ values are obeyed or refused with a
// UsageError. To offload is to park in a store in forward and fetch back for the recomputation.
enum class CheckpointPolicy {
  kMustSave,
  kPreferSave,
  kMustRecompute,
  kPreferRecompute,
  kMustCpuOffload,
  kPreferCpuOffload,
};

// One operator call in forward, as a policy sees it: after it has run. Valid during the policy's
// call.
class SelectiveCheckpointContext {
 public:
  SelectiveCheckpointContext(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments,
                             at::ArrayRef<c10::IValue> results, std::int64_t call_index)
      : schema_(schema), arguments_(arguments), results_(results), call_index_(call_index) {}

  const c10::FunctionSchema& schema() const { return schema_; }
  // "aten::mm"; "autograd::MyFunction" for a custom autograd function.
  const std::string& op() const { return schema_.name(); }
  // Whether `name` names it: "mm", "aten::mm", "add.Tensor", "aten::add.Tensor". Without an
  // overload it stands for all.
  bool is(std::string_view name) const;
  at::ArrayRef<c10::IValue> arguments() const { return arguments_; }
  // Of a custom autograd function, which is asked about before it runs: empty.
  at::ArrayRef<c10::IValue> results() const { return results_; }
  // Of the results' elements.
  Bytes result_bytes() const;
  // Floating-point operations: 2mnk and the like for matrix products, convolutions and attention,
  // one an element of the results for anything else.
  double flops() const;
  // How many calls of this operator the region made before this one.
  std::int64_t call_index() const { return call_index_; }
  // The path of names (named.h) in force.
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

  // Asked for each operator call. May be called from several threads at once, may have state, may
  // throw (which passes through the region). Operators that it calls are not asked about.
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
  // Saves these operators (kMustSave, as in torch), recomputes the others. Names as in
  // SelectiveCheckpointContext::is; "autograd::Name" for a custom autograd function. Throws
  // UsageError for a name that LibTorch does not know.
  OperatorPolicy(std::vector<std::string> operators);  // NOLINT(google-explicit-constructor)
  OperatorPolicy(std::initializer_list<std::string_view> operators)
      : OperatorPolicy(std::vector<std::string>(operators.begin(), operators.end())) {}

  // Keeps what either keeps. Of two answers the one further right wins: kPreferRecompute,
  // kPreferCpuOffload, kPreferSave, kMustRecompute, kMustCpuOffload, kMustSave.
  friend OperatorPolicy operator|(const OperatorPolicy& a, const OperatorPolicy& b);

 private:
  friend struct detail::PolicyRuleAccess;
  explicit OperatorPolicy(std::shared_ptr<const detail::PolicyRule> rule)
      : rule_(std::move(rule)) {}

  std::shared_ptr<const detail::PolicyRule> rule_;
};

// Matrix products, which cost most for what they hold: mm, addmm, bmm, baddbmm, convolutions and
// scaled dot-product attention.
OperatorPolicy save_matmuls();

// Everything but these operators. The default ones are elementwise, an operation or a few an
// element, and softmax.
OperatorPolicy save_all_but(std::vector<std::string> operators);
OperatorPolicy save_all_but_cheap();

// In each region the results that are dearest to recompute for what they hold, by
// SelectiveCheckpointContext::flops() a byte, as many as fit in `bytes` (greedy, decided as forward
// goes on: a dearer result drives out cheaper ones). Throws UsageError for a negative number.
OperatorPolicy save_largest_cost_per_byte(Bytes bytes);

// Keeps products and activations, but nothing of the core of attention: neither its scores (the
// product of queries and keys), nor what scaling, masking, softmax and dropout make of them. This
// is "selective activation recomputation" (Korthikanti et al., arXiv:2205.05198, section 5).
// - It goes by the operators: scores are the result of a batched product that is larger than both
//   of its factors. Sums, elementwise products, copies, dropout and layer norms are recomputed
//   wherever they stand. Fused attention holds no scores, and its results are kept.
// - Bytes: a block of a transformer keeps less than the paper's 34 s b h, here 16 s b h elements
//   and two masks, since norms are recomputed too. Of the square of the time t remain the bits of a
//   dropout mask, a t² b / 8 bytes for a heads.
// - Time: a recomputation runs the product of queries and keys again, t / (18 d + 3 t) / 2 of the
//   step's operations at width d, and passes over the scores: mask, softmax, dropout. In blocks of
//   width 256 with 4 heads and t = 1024 a step takes as long as the plain one, where the system
//   gives large pages on request (Linux: transparent_hugepage "madvise" or "always"); regions
//   ask for them, the plain step does not (docs/architecture.md, "Large pages").
OperatorPolicy recompute_attention();

// Every n-th call of an operator, the n-th first: every_nth("mm", 2) keeps the 2nd, 4th, ... of
// each region. Throws UsageError for n < 1 and for unknown operators.
OperatorPolicy every_nth(std::string_view op, std::int64_t n);

// `policy` inside the named parts (named.h) whose path is `path` or ends with "." and `path`, or
// lies inside such a part; elsewhere kPreferRecompute. "attention" fits
// "blocks.3.attention.scores".
OperatorPolicy inside(std::string path, OperatorPolicy policy);

// What `policy` saves is offloaded instead (kMustSave to kMustCpuOffload, kPreferSave to
// kPreferCpuOffload).
OperatorPolicy offloading(OperatorPolicy policy);

struct SelectiveOptions {
  // Where kMustCpuOffload and kPreferCpuOffload park. Without one, tensors of an accelerator go to
  // pinned host memory (host_store()), and offloading a CPU tensor is a UsageError.
  std::shared_ptr<Store> store = {};
  // Hold kept results until the graph is freed, so that the region can be recomputed any number of
  // times.
  bool reuse = false;
  // Accept kept results that were changed in place after they were kept; the changed value is used.
  bool allow_cache_entry_mutation = false;
};

// For CheckpointOptions::context.
std::function<RegionContexts()> selective(OperatorPolicy policy, SelectiveOptions options = {});

// The contexts of one region, as torch's function of this name returns them.
RegionContexts create_selective_checkpoint_contexts(OperatorPolicy policy,
                                                    SelectiveOptions options = {});

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
