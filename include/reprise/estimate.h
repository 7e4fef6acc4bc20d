// What a training step would need, in bytes and in seconds, before anything is allocated.
//
//   const auto estimate = reprise::estimate_step(*model, [&] { return model->loss(batch); },
//                                                {.optimizer = {reprise::OptimizerKind::kAdamW}});
//   std::cout << to_string(estimate.peak) << '\n';            // 81.3 GB
//   estimate.trace.simulate({.budget = reprise::GB(40)});     // what a byte budget would cost
//
// The step is run once, forward and backward, on the meta device, where tensors have shapes and no
// memory: the module's parameters and buffers are lent to it for the call and given back, and
// whatever else the step makes or reads goes there by itself, tensors of real data included. So the
// step is the program's own, with its regions, its autograd graph and its frees; nothing of it is
// described twice. A model that does not fit is built on the meta device as well:
//
//   std::optional<models::Gpt> model;
//   {
//     const reprise::MetaTensorsScope unallocated;
//     model.emplace(options);                        // 70 billion parameters, no byte
//   }
//
// docs/estimates.md has the formulas, their sources, and what is not modelled.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <reprise/bytes.h>
#include <reprise/step_trace.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace reprise {

// While it lives, operators of this thread make and read meta tensors alone: factories give tensors
// without memory, whatever device they name, and modules that are constructed have parameters
// without values. A constructor that asks for values by an operator (item()) gets a UsageError, one
// that asks for data_ptr() LibTorch's own error.
class MetaTensorsScope {
 public:
  MetaTensorsScope();
  ~MetaTensorsScope();
  MetaTensorsScope(const MetaTensorsScope&) = delete;
  MetaTensorsScope& operator=(const MetaTensorsScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What the time of an operator is made of: the longer of its arithmetic and of moving its bytes,
// and something for every call (the roofline model: Williams, Waterman and Patterson, 2009).
struct Machine {
  double flops = 1e12;                // floating-point operations a second, in f32
  double low_precision_flops = 1e12;  // in 16-bit types
  double bandwidth = 1e11;            // bytes a second, read and written
  Seconds overhead{0};                // of every call

  // The time of a call.
  Seconds seconds(double flops_done, double bytes_moved, bool is_low_precision) const;

  // A file that calibrate() was written to with json(). Throws UsageError "FILE:LINE: ...".
  static Machine read(const std::filesystem::path& file);
  // The same from a text; `origin` stands for the file in errors.
  static Machine parse(std::string_view text, const std::string& origin);
  // {"format": "reprise machine", "version": 1, ...}. Throws UsageError for rates that parse()
  // would refuse.
  std::string json() const;
};

// Measures this machine's CPU with LibTorch's present number of threads: matrix products of f32 and
// bf16, elementwise operators on tensors beyond the caches, and calls on tiny ones. Takes about
// `time`; the rates are the best that were seen, the overhead is a median. Throws UsageError for a
// time that is not above zero, and inside of an estimate or of MetaTensorsScopeScope.
Machine calibrate(Seconds time = std::chrono::seconds(3));

enum class OptimizerKind {
  kNone,
  kSgd,    // with momentum: one value a parameter
  kAdamW,  // two
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kNone;
  // Of 16-bit parameters: the state in f32, and an f32 copy of the parameters, as in training with
  // mixed precision (Micikevicius et al., arXiv:1710.03740). False: state of the parameters' type.
  bool master_weights = true;
};

struct EstimateOptions {
  // CPU or CUDA: whose operators' choices are followed in what they save, and how its allocator
  // rounds.
  c10::DeviceType device = c10::DeviceType::CPU;
  Machine machine = {};
  OptimizerOptions optimizer = {};
  // Parameters, gradients and optimizer state are divided by so many devices, as ZeRO-3 and FSDP
  // do (Rajbhandari et al., arXiv:1910.02054). Activations are not. The whole weights of the layer
  // at work, which these gather, are not counted.
  std::int64_t shards = 1;
};

// What one device needs in a step; state that is divided counts as its part.
struct Estimate {
  struct Item {
    std::string kind;  // "block/gelu": the named() path without numbers, and the operator
    Bytes bytes;
  };

  explicit Estimate(StepTrace step) : trace(std::move(step)) {}

  // There before the step.
  Bytes parameters, buffers, optimizer_state;
  Bytes inputs;     // tensors that the step read and nobody had made in it
  Bytes gradients;  // of parameters, at the end of the step

  // Made by forward and still held when it ends, for backward; largest first.
  std::vector<Item> kept;
  Bytes activations;  // all of those

  // The most that is alive at once, and what of it is which. Gradients are made during backward.
  Bytes peak;
  Bytes gradients_at_peak, activations_at_peak;
  // The rest at that moment: gradients of activations, what is recomputed, operators' workspaces.
  Bytes temporaries_at_peak;
  std::string peak_operator;  // that runs then

  std::int64_t parameter_count = 0;
  std::int64_t operators = 0;  // calls, recomputation included
  double flops = 0;            // of the step, recomputation included
  double recomputed_flops = 0;
  Seconds seconds{}, forward_seconds{}, recompute_seconds{};

  // The step for planners::hindsight and for simulate(): what was there before it are constants.
  StepTrace trace;

  // There before the step and after it.
  Bytes state() const { return parameters + buffers + optimizer_state + inputs; }
};

// `loss` runs forward and gives what backward starts from: one real number. It is called once, on
// the calling thread. Afterwards the module is as it was: values, gradients, which parameters
// require them, state of buffers, and the default generators of the CPU and of the module's
// devices; generators of one's own are not drawn from, but one that `loss` seeds stays seeded. What
// `loss` writes to tensors that it holds itself reaches stand-ins, numbers without dimensions
// included. Other objects are not watched: a tensor that forward assigns to a plain member of a
// module stays there without memory, and so does state that an optimizer makes if `loss` runs it.
// named() scopes in it are the kinds of activations.
//
// It may be called anywhere but inside of another estimate and of MetaTensorsScope: regions, hooks,
// policies and budgets around it see nothing of it, and it nothing of them.
//
// Threads: nobody else may use the module meanwhile, nor count on draws from the default generators
// where `loss` seeds them. Estimates of different modules may run on several threads at once,
// each with its own; the first of a process, which registers shape functions, must not overlap
// operators of other threads. `loss` may run operators on threads of its own with
// at::ThreadLocalState; operators there make the choices of the CPU.
//
// Throws UsageError for
// - a call inside of another estimate or of MetaTensorsScope, and an empty function;
// - a device other than CPU and CUDA, shards below 1 or above 2^20, rates of a machine below 1 or
//   above 1e24, an overhead beyond a second, and a step of more than 52 days, which traces do not
//   hold;
// - a result that is no real number with a gradient;
// - an operator whose result depends on values (item(), nonzero), or data_ptr() of a tensor, and
//   an operator that has no shape function; the text says how to add one;
// - a step under autocast for that device, which tensors without memory do not follow: convert the
//   module instead;
// - a tensor outside of the module that requires a gradient and gets one: register or detach it;
// - a tensor made before the estimate, if backward would continue into its history: make it in
//   `loss`, or detach it;
// - operators on sparse tensors, and set_data() of a tensor outside of the module;
// - checkpoint_sequential() with a budget in bytes, which measures layers: give it a schedule;
// - parameters and buffers that the step registers in a module with memory, for they would have
//   none. That also replaces an error of `loss`, whose text it repeats.
Estimate estimate_step(torch::nn::Module& module, const std::function<at::Tensor()>& loss,
                       const EstimateOptions& options = {});

}  // namespace reprise
