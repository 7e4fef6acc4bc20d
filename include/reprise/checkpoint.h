// checkpoint(f, args...) runs f now, keeps only its arguments, and runs f again when backward needs
// what f computed. It does what torch.utils.checkpoint (2.15) does, for C++.
//
//   auto y = reprise::checkpoint([&](at::Tensor x) { return block->forward(x); }, x);
//   auto y = reprise::checkpoint(block, x);                      // a module is a function too
//   auto [h, c] = reprise::checkpoint({.early_stop = EarlyStop::kNever}, cell, x, state);
//
// The call is a *region*. Forward keeps the region's arguments alive and nothing that it computes
// inside. The first read of a saved tensor in backward runs f again, collects the tensors that f
// saves, and hands each out once. Source of the method: Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", arXiv:1604.06174. Source of the nesting rules: torch/utils/checkpoint.py,
// note "Nestable Checkpoint".
//
// Gradients are bitwise those of the plain call if f does the same thing twice; reentrant regions
// have one exception (below). reprise helps f with that. It replays random draws (dropout), sets
// autocast and the other ambient state as they were, and compares what both runs save. Tensors that
// f updates (BatchNorm's running statistics) are restored, and updated once.
//
// Arguments are copied or moved into the region, as std::thread does it, and f gets them as const
// lvalues; std::ref passes a reference. Tensors anywhere inside arguments are saved through
// autograd, so that an outer region or hook scope can manage them. Pass activations as arguments: a
// tensor that f captures instead is kept alive by f and not checked for changes.
//
// f may be move-only. It is kept until the graph is freed, and called from any thread that runs
// backward. A module is passed as it is: ModuleHolder, Sequential, AnyModule, shared_ptr to a
// module, torch::jit::Module. A module passed as an lvalue object is referred to and must outlive
// the graph.
//
// The result may have any type, or be void, and is passed through untouched (for reentrant regions
// see below). If grad mode is off, f is simply called.
//
// Arguments and results may be tensors, c10::IValue, std::optional, pair, tuple, array, vector,
// deque, list, map and unordered_map (values, not keys), variant, and any nesting of these. Tensors
// in a type of your own are found through a function beside the type. The function must visit the
// same tensors in the same order each time, and the type must be copyable:
//
//   struct Batch { at::Tensor tokens; std::vector<at::Tensor> masks; int step; };
//   template <class F> void reprise_visit_tensors(Batch& b, F&& f) {
//     reprise::visit_tensors(b.tokens, f);
//     reprise::visit_tensors(b.masks, f);
//   }
//
// Thread rules: regions may run on any number of threads, and several threads may run backward over
// one graph (retain_graph). Each backward call recomputes for itself, and the device threads of one
// backward share a recomputation, so f may run on several threads at once. Regions that drew random
// numbers or wrote to state replay one at a time in the process. Meanwhile no other thread may use
// that state or those generators.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <reprise/detail/region_call.h>
#include <reprise/error.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace at {
struct Generator;
}

namespace reprise {

// The comparison of the tensors that forward saved with the tensors that the recomputation saves.
enum class DeterminismCheck {
  kNone,
  // Number, shapes, dtypes and devices: what torch calls "default".
  kDefault,
  // Also a 64-bit hash (XXH3) of every saved tensor's bytes, taken in both runs. It finds a
  // function that computes other values of the same shapes. Each saved tensor is read twice for it,
  // and accelerator tensors are copied to the host.
  kValues,
};

// Whether a recomputation may stop once it has saved everything that backward needs.
//
// An early stop leaves f by an exception, so destructors must undo what f switches for a while.
// (Autocast has no guard in C++ and is reset for f.)
enum class EarlyStop {
  kNever,
  // Stop if the rest of f, as timed in forward, takes longer than the exception: about 5
  // microseconds. Otherwise run f to its end without saving anything more.
  kWhenCheaper,
  // Stop at once, whatever it costs: no operator after the last needed one runs again.
  kAlways,
};

// An object that is alive while a function runs: any RAII guard, held by pointer.
using ContextScope = std::shared_ptr<void>;

// The guards to open around f in forward and around each recomputation. `forward` and `recompute`
// are called right before f. Their guards are destroyed right after f, also if f throws. Any of the
// functions may be empty.
struct RegionContexts {
  std::function<ContextScope()> forward;
  std::function<ContextScope()> recompute;
  // Called when a recomputation did not match forward: returns a sentence that the DeterminismError
  // quotes, or an empty text.
  std::function<std::string()> explain = {};
  // Called when f has saved a tensor for backward. It gets the object that `forward` or `recompute`
  // returned and the number of tensors that this run of f saved before, so that the two runs can be
  // compared.
  std::function<void(void* scope, std::size_t index)> on_save = {};
  // Called when a recomputation has succeeded and will not be repeated. (A function that fills a
  // cache in forward may have to run once more.)
  std::function<void()> recomputed = {};
};

// Reentrant regions (torch's use_reentrant=True) run forward without a graph. Backward builds a
// graph and runs a backward of its own inside. Limits:
// - only backward() without `inputs`, no second derivative (create_graph);
// - at least one input and one output must require grad, and every floating-point output requires
//   grad; tensors detached inside raise an error;
// - f always runs to its end, and EarlyStopScope and CheckpointDebugScope have no effect;
// - if an argument is also used outside of the region (a skip connection), its gradient is not
//   bitwise the plain one, because the inner backward sums the gradients from inside first.
//
// State is a tensor that existed before the region and that f writes to: a running statistic, a
// counter, the vectors of spectral normalization. With `preserve_state` the recomputation reads it
// as forward did, contents and version, and puts it back afterwards, so it is updated once a step.
// - Only writes by operators are seen, also by custom ones whose schema names what they write to.
//   Writes through data_ptr() in f, replaced tensors (u = v) and objects are not seen.
// - State that a recomputation does not write again, such as a cache that f fills once, is left as
//   it is, and f runs a second time.
// - The bytes that f writes to are copied and kept with the graph, but nothing that f made itself.
// - On accelerators, and under a CPU allocator of the program's own, nothing is copied. The
//   recomputation starts from the present contents, and its writes to state are undone.
//
// With `skip_zero_gradients`, f does not run again if the gradients of all results are exactly zero
// (every element is +0 or -0): an expert whose weight is zero, a loss that masks the region's
// results. Its inputs and the parameters that it used get gradients of zeros.
// - Backward of f would give the same but for infinite values in f (NaN), the sign of zeros, and
//   sparse gradients.
// - Each gradient costs one reduction; on an accelerator the host waits for the device.
// - f runs again in any case with create_graph, and if a tensor left f otherwise than as a result
//   and has a gradient. So it does if f has hooks on tensors, custom autograd functions, nested
//   tensors, results that are views, or results that share memory with others or with arguments.
struct CheckpointOptions {
  // -- How the region runs

  // false: autograd records the graph in forward, and every way of running backward works.
  // true: a backward of its own inside backward, with the limits above.
  bool reentrant = false;
  // An EarlyStopScope around the forward call overrides it. kAlways is refused with `reentrant`.
  EarlyStop early_stop = EarlyStop::kWhenCheaper;
  // Makes what is opened around f, such as selective() (reprise/selective.h). Called once, in
  // forward. Refused with `reentrant`.
  std::function<RegionContexts()> context = {};
  // Names the region in error texts.
  std::string name = {};

  // -- What a recomputation repeats

  // Replay the draws of every generator that an operator inside f uses. A direct call of a
  // generator is seen for the CPU's default one, those of the arguments' accelerators
  // (DefaultDeviceType if there are none), and `generators`. An f that draws in that way and resets
  // the generator must use RandomState: after at::Generator::set_state it seems to draw nothing.
  bool preserve_rng_state = true;
  std::vector<at::Generator> generators = {};
  // Restore the tensors that f updates, as described above. false: both runs write, as in torch.
  bool preserve_state = true;
  // Recompute under forward's autocast, at::Context (oneDNN, precisions, determinism), default
  // dtype, threads, rounding and denormals. false: under those in force in backward.
  bool preserve_ambient_state = true;

  // -- Checks and debugging

  // A `reentrant` region saves nothing in forward, so it compares f's results.
  DeterminismCheck determinism_check = DeterminismCheck::kDefault;
  // Add the operators of both runs to the text of a DeterminismError. A CheckpointDebugScope around
  // the forward call overrides it. Refused with `reentrant`.
  bool debug = false;

  // -- Rarely needed

  // Accept arguments that were changed in place between forward and the recomputation, and
  // recompute from the changed values, as torch does; for arguments that f only writes to. What f
  // itself writes to an argument is state (preserve_state). Refused with `reentrant`.
  bool allow_changed_arguments = false;
  // Do not run f again for gradients that are all zero, as described above. Refused with
  // `reentrant`.
  bool skip_zero_gradients = false;
};

// Overrides CheckpointOptions::early_stop for regions whose *forward* runs inside. Inner scopes
// win.
class EarlyStopScope {
 public:
  explicit EarlyStopScope(EarlyStop early_stop);
  ~EarlyStopScope();
  EarlyStopScope(const EarlyStopScope&) = delete;
  EarlyStopScope& operator=(const EarlyStopScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Overrides CheckpointOptions::debug for regions whose *forward* runs inside. nullopt leaves the
// choice to the option.
class CheckpointDebugScope {
 public:
  explicit CheckpointDebugScope(std::optional<bool> enabled);
  ~CheckpointDebugScope();
  CheckpointDebugScope(const CheckpointDebugScope&) = delete;
  CheckpointDebugScope& operator=(const CheckpointDebugScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Lets several backward calls share recomputations: inside a scope of one group each region is
// recomputed at most once. The calls must read disjoint parts of the graph, even with retain_graph,
// because a saved tensor is handed out once a group. For non-reentrant regions only. Recomputed
// tensors that nobody read are freed when the group is destroyed.
class GraphExecGroup {
 public:
  GraphExecGroup();
  ~GraphExecGroup();
  GraphExecGroup(const GraphExecGroup&) = delete;
  GraphExecGroup& operator=(const GraphExecGroup&) = delete;

  // Backward calls of this thread, and of autograd's threads for them, belong to the group while
  // the scope lives. Throws UsageError inside another group's scope.
  class Scope {
   public:
    explicit Scope(GraphExecGroup& group);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

 private:
  std::shared_ptr<detail::GroupState> state_;
};

// True while the innermost region around the caller runs for the first time.
bool is_checkpointing();
// True while any region around the caller is being run again.
bool is_recomputing();

// Runs f(args...) as a region and returns its result. f is anything invocable with const lvalues of
// the arguments, or a module. Errors of f pass through and leave all state as before. Others:
// - UsageError for options that exclude each other.
// - DeterminismError in backward, if f saved another number of tensors or different ones (the text
//   has both lists), an argument was changed in place, a saved tensor was read twice in one
//   backward, or a reentrant region runs under autograd::grad or has no output that requires grad.
// Warns if a reentrant region has no input that requires grad.
template <class F, class... Args>
auto checkpoint(const CheckpointOptions& options, F&& f, Args&&... args) {
  detail::check_options(options);
  if (!c10::GradMode::is_enabled()) {
    return detail::call_plain(f, args...);
  }
  auto call = detail::make_call(std::forward<F>(f), std::forward<Args>(args)...);
  detail::run_region(options, call);
  return call->take_result();
}

// The same with default options.
template <class F, class... Args>
  requires(!std::same_as<std::remove_cvref_t<F>, CheckpointOptions>)
auto checkpoint(F&& f, Args&&... args) {
  return checkpoint(detail::default_options(), std::forward<F>(f), std::forward<Args>(args)...);
}

// checkpoint() with its options and its function given ahead. torch has it as a decorator,
// checkpoint(use_reentrant=False)(fn).
//
//   const auto attend = reprise::checkpointed({.early_stop = EarlyStop::kNever}, attention);
//   h = attend(q, k, v);                               // as checkpoint(options, attention, q, k, v)
//   std::function<at::Tensor(at::Tensor)> layer = reprise::checkpointed(block);
//
// Each call is a region of its own, with all rules of checkpoint() for its arguments, results and
// errors. The options hold for every call, and a `context` makes new guards for each.
//
// The callable can be copied and moved, also if f cannot. All copies and all their regions share
// one f and keep it alive, so the callable may be destroyed before backward. A module passed as an
// lvalue object is referred to. Several threads may call at once if f can be called so.
template <class F>
class Checkpointed {
 public:
  // Throws UsageError for options that exclude each other.
  Checkpointed(CheckpointOptions options, F f)
      : options_(std::move(options)), function_(std::make_shared<F>(std::move(f))) {
    detail::check_options(options_);
  }

  template <class... Args>
  auto operator()(Args&&... args) const {
    return checkpoint(options_, detail::SharedFunction<F>{function_}, std::forward<Args>(args)...);
  }

 private:
  CheckpointOptions options_;
  std::shared_ptr<F> function_;
};

template <class F>
auto checkpointed(CheckpointOptions options, F&& f) {
  return Checkpointed<detail::StoredFunction<F>>(std::move(options), std::forward<F>(f));
}

// The same with default options.
template <class F>
auto checkpointed(F&& f) {
  return checkpointed(detail::default_options(), std::forward<F>(f));
}

}  // namespace reprise
