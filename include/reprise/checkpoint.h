// checkpoint(f, args...): run f now, keep only its arguments, and run it again when backward needs
// what it computed. Everything that torch.utils.checkpoint (2.13) does, for C++.
//
//   auto y = reprise::checkpoint([&](at::Tensor x) { return block->forward(x); }, x);
//   auto y = reprise::checkpoint(block, x);                      // a module is a function too
//   auto [h, c] = reprise::checkpoint({.early_stop = EarlyStop::kNever}, cell, x, state);
//
// The call is a *region*. Forward keeps alive the region's arguments and nothing it computes
// inside; the first read of a saved tensor in backward runs f again, collects what it saves, and
// hands each tensor out once. Gradients are bitwise those of the plain call (with one exception of
// reentrant regions, see `reentrant`), as long as f does the same thing twice: random draws
// (dropout) are replayed, autocast and the other ambient state are as they were, tensors that f
// updates (BatchNorm's running statistics) are as forward found them and are updated once, and what
// f saves is checked. Source of the method: Chen et al., "Training Deep Nets with Sublinear Memory
// Cost", arXiv:1604.06174; of the nesting rules: torch/utils/checkpoint.py, note "Nestable
// Checkpoint".
//
// Arguments are copied or moved into the region, as std::thread does it, and handed to f as const
// lvalues (std::ref passes a reference). Tensors anywhere in them (visit_tensors.h) are saved
// through autograd, so that an outer region or hook scope can manage them. Tensors that f captures
// instead are kept alive by f and are not checked for changes: pass as an argument what is an
// activation. f itself may be move-only; it is kept until the graph is freed, and called from
// whichever thread runs backward. Modules (ModuleHolder, Sequential, AnyModule, shared_ptr to a
// module, torch::jit::Module) can be passed as they are; a module passed as an lvalue object is
// referred to and must outlive the graph.
//
// The result, of any type or void, is passed through untouched (but see `reentrant`). If grad mode
// is off, f is simply called.
//
// Thread rules: regions may run on any number of threads, and several threads may run backward over
// one graph (retain_graph): each backward call recomputes for itself, device threads of one
// backward share one recomputation. f may therefore run on several threads at once. Regions that
// drew random numbers or wrote to state replay one at a time in the whole process; meanwhile no
// other thread may use that state or those generators.
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

// What to compare between what forward saved and what the recomputation saves.
enum class DeterminismCheck {
  kNone,
  // Number, shapes, dtypes and devices: what torch calls "default".
  kDefault,
  // Also a 64-bit hash (XXH3) of every saved tensor's bytes, taken in both runs: finds a function
  // that computes something else with the same shapes. Costs one read of each saved tensor, twice,
  // and a copy to the host for accelerator tensors.
  kValues,
};

// Whether a recomputation may stop once everything that backward needs has been saved again.
//
// f is left by an exception: what it switches for a while must be undone by a destructor.
// (Autocast, which has no guard in C++, is put back for it.)
enum class EarlyStop {
  kNever,
  // Stop when what is left to run (as timed in forward) costs more than stopping does: leaving f
  // takes an exception, about 5 microseconds. Otherwise run to the end with nothing being saved any
  // more.
  kWhenCheaper,
  // Stop at once, whatever it costs; no operator after the last needed one runs again.
  kAlways,
};

// An object that is alive while a function runs: any RAII guard, held by pointer.
using ContextScope = std::shared_ptr<void>;

// What to open around f in forward and around each recomputation. Each function is called right
// before f and its result destroyed right after, also when f throws. Either may be empty.
struct RegionContexts {
  std::function<ContextScope()> forward;
  std::function<ContextScope()> recompute;
  // Asked when a recomputation did not match forward, for a sentence that the DeterminismError
  // quotes; may be empty and may return an empty text.
  std::function<std::string()> explain = {};
  // Called when f has saved a tensor for backward, with the object that `forward` or `recompute`
  // returned, and the number of tensors that this run of f saved before: where the two runs stand
  // beside each other. May be empty.
  std::function<void(void* scope, std::size_t index)> on_save = {};
  // Called when a recomputation has run to its end and will not be run again: it may have to be,
  // where the function fills a cache of its own in forward. Not called after one that failed. May
  // be empty.
  std::function<void()> recomputed = {};
};

struct CheckpointOptions {
  // false: autograd records the graph in forward, and saved tensors are recomputed when read. Every
  // way of running backward works. true: forward runs without a graph; backward builds one and runs
  // a backward of its own inside (torch's use_reentrant=True), with these limits: only backward()
  // without `inputs`; at least one input and one output must require grad; every floating-point
  // output requires grad; tensors detached inside raise an error; no second derivative
  // (create_graph); f always runs to its end, and the scopes below have no effect. Where an
  // argument is also used outside of the region (a skip connection), its gradient is not bitwise
  // the plain one: the inner backward sums the gradients from inside first, and the plain step adds
  // all of them one by one in another order.
  bool reentrant = false;
  // An EarlyStopScope around the forward call overrides it. kAlways is refused with `reentrant`.
  EarlyStop early_stop = EarlyStop::kWhenCheaper;
  // Called once, in forward. Refused with `reentrant`.
  std::function<RegionContexts()> context = {};
  // Names the region in error texts.
  std::string name = {};
  // Replay random draws, from every generator that an operator inside f draws from. Draws that are
  // made past LibTorch's operators (by calling a generator) are known of only for the default CPU
  // generator, those of every accelerator that has a tensor among the arguments
  // (DefaultDeviceType if none has), and `generators`. A function that draws in that way and then
  // sets the generator back itself must do so through reprise (RandomState); after
  // at::Generator::set_state it looks as if it had drawn nothing.
  bool preserve_rng_state = true;
  std::vector<at::Generator> generators = {};
  // Replay state: a tensor that f writes to although it was there before the region (a running
  // statistic, a counter, the vectors of spectral normalization; captured, or in a module) is for
  // the recomputation what it was when forward entered f, contents and version, and afterwards
  // again what it was before the recomputation. So it is updated once a step, as without regions.
  // Seen are writes by operators, LibTorch's and custom ones whose schema names what they write
  // to; not seen are writes through data_ptr() in f itself, tensors that f puts in another's place
  // (u = v), and objects.
  //
  // State that a recomputation does not write to again (a cache that f fills once) is left as it
  // is, and f run a second time. Costs a copy of the bytes that f writes to, kept with the graph;
  // none of what f has made itself. Elsewhere than on the CPU, and under a CPU allocator of the
  // program's own, nothing is copied: the run starts from what there is by then, and what it writes
  // to tensors that forward wrote to is undone. Regions with state replay one at a time in the
  // process, as do those that draw.
  //
  // false: both runs write, as in torch.
  bool preserve_state = true;
  // Recompute under forward's autocast, at::Context (oneDNN, precisions, determinism), default
  // dtype, threads, rounding and denormals. false: under whatever is in force in backward.
  bool preserve_ambient_state = true;
  // With `reentrant` the tensors compared are f's results, since nothing is saved in forward.
  DeterminismCheck determinism_check = DeterminismCheck::kDefault;
  // On a DeterminismError, add the operators of both runs to its text. A CheckpointDebugScope
  // around the forward call overrides it. Refused with `reentrant`.
  bool debug = false;
  // Accept arguments that were changed in place between forward and the recomputation, which then
  // starts from the changed value, as torch does. For arguments that f only writes to. What f
  // itself writes to an argument is state (preserve_state). Refused with `reentrant`.
  bool allow_changed_arguments = false;
  // Where the gradients of all results are exactly zero (every element is +0 or -0), f is not run
  // again: what it was given and the parameters that it used get gradients of zeros, which backward
  // of f would come to as well, but for infinite values in f, which would make them NaN, for the
  // sign of zeros, and for those that would be sparse. So it goes for an expert whose weight is
  // zero, or a loss that masks all that the region made. Each gradient is looked at for it: one
  // reduction, and on an accelerator the host waits for the device.
  //
  // f is run again in any case for a tensor that left it otherwise than as a result and has a
  // gradient; with create_graph; and where it has hooks on tensors, custom autograd functions,
  // nested tensors, results that are views, or results that share memory with others or with
  // arguments. Refused with `reentrant`.
  bool skip_zero_gradients = false;
};

// Overrides CheckpointOptions::early_stop for the regions whose *forward* runs inside. Inner scopes
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

// Overrides CheckpointOptions::debug for regions whose forward runs inside; nullopt defers to the
// option.
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

// Backward calls inside one group's scope recompute each region at most once between them. They
// must read disjoint parts of the graph, even with retain_graph: a saved tensor is handed out once
// per group. Non-reentrant regions only. What was recomputed and not read is freed when the group
// is destroyed.
class GraphExecGroup {
 public:
  GraphExecGroup();
  ~GraphExecGroup();
  GraphExecGroup(const GraphExecGroup&) = delete;
  GraphExecGroup& operator=(const GraphExecGroup&) = delete;

  // Backward calls of this thread (and autograd's threads for them) belong to the group while it
  // lives. Throws UsageError inside another group's scope.
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

// Runs f(args...) as a region and returns its result. f: anything invocable with const lvalues of
// the arguments, or a module. Errors (besides those of f, which pass through and leave all state as
// before):
// - UsageError: options that exclude each other.
// - in backward, DeterminismError: f saved another number of tensors, or others (with both lists);
//   an argument was changed in place; a saved tensor was read twice in one backward; reentrant
//   under autograd::grad, or with no output that requires grad.
// Warns when a reentrant region has no input that requires grad.
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

}  // namespace reprise
