// estimate_step(): what a training step needs, in bytes and seconds, before anything is allocated.
//
//   const auto estimate = reprise::estimate_step(*model, [&] { return model->loss(batch); },
//                                                {.optimizer = {reprise::OptimizerKind::kAdamW}});
//   std::cout << to_string(estimate.peak) << '\n';            // 81.3 GB
//   estimate.trace.simulate({.budget = reprise::GB(40)});     // what a byte budget would cost
//
// The step runs once, forward and backward, on the meta device, whose tensors have shapes and no
// memory. The module's parameters and buffers are lent to it for the call. Whatever else the step
// makes or reads is moved there by itself, also tensors with data. So the estimate is of the
// program's own step, with its regions, its autograd graph and its frees.
//
// A model that does not fit is built on the meta device as well:
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

// While it lives, operators of this thread make and read meta tensors alone. Factories give tensors
// without memory, whatever device they name, and constructed modules have parameters without
// values. A constructor that reads values by an operator (item()) gets a UsageError, and one that
// calls data_ptr() gets LibTorch's own error.
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

// The rates of a machine. An operator takes the longer of its arithmetic and of moving its bytes,
// plus a time for each call (the roofline model: Williams, Waterman and Patterson, 2009).
struct Machine {
  double flops = 1e12;                // floating-point operations a second, in f32
  double low_precision_flops = 1e12;  // in 16-bit types
  double bandwidth = 1e11;            // bytes a second, read and written
  Seconds overhead{0};                // of every call

  // The time of a call.
  Seconds seconds(double flops_done, double bytes_moved, bool is_low_precision) const;

  // Reads a file with the json() of calibrate(). Throws UsageError "FILE:LINE: ...".
  static Machine read(const std::filesystem::path& file);
  // The same from a text; `origin` stands for the file in errors.
  static Machine parse(std::string_view text, const std::string& origin);
  // {"format": "reprise machine", "version": 1, ...}. Throws UsageError for rates that parse()
  // refuses.
  std::string json() const;
};

// Measures this machine's CPU with LibTorch's present number of threads: matrix products of f32 and
// bf16, elementwise operators on tensors larger than the caches, and calls on tiny ones. It takes
// about `time`. Rates are the best that were seen, the overhead is a median. Throws UsageError for
// a time that is not above zero, and inside an estimate or a MetaTensorsScope.
Machine calibrate(Seconds time = std::chrono::seconds(3));

enum class OptimizerKind {
  kNone,
  kSgd,    // with momentum: one value a parameter
  kAdamW,  // two values a parameter
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kNone;
  // For 16-bit parameters, count the state in f32 and an f32 copy of the parameters, as in training
  // with mixed precision (Micikevicius et al., arXiv:1710.03740). false: state of the parameters'
  // type.
  bool master_weights = true;
};

struct EstimateOptions {
  // CPU or CUDA: decides what operators save, and how the allocator rounds.
  c10::DeviceType device = c10::DeviceType::CPU;
  Machine machine = {};
  OptimizerOptions optimizer = {};
  // Divides parameters, gradients and optimizer state by this number of devices, as ZeRO-3 and FSDP
  // do (Rajbhandari et al., arXiv:1910.02054), but not activations. The gathered weights of the
  // layer at work are not counted.
  std::int64_t shards = 1;
};

// The needs of one device in a step. Divided state counts with the device's part.
struct Estimate {
  struct Item {
    std::string kind;  // "block/gelu": the named() path without numbers, and the operator
    Bytes bytes;
  };

  explicit Estimate(StepTrace step) : trace(std::move(step)) {}

  // -- State

  Bytes parameters, buffers, optimizer_state;  // there before the step
  Bytes inputs;     // tensors that the step read and that nobody made in it
  Bytes gradients;  // of parameters, at the end of the step

  // -- Activations

  // Made by forward and still held for backward when forward ends; largest first.
  std::vector<Item> kept;
  Bytes activations;  // the sum of `kept`

  // -- The peak: the most bytes live at once, and its parts. Gradients are made during backward.

  Bytes peak;
  Bytes gradients_at_peak, activations_at_peak;
  // The rest at the peak: gradients of activations, recomputed values, operators' workspaces.
  Bytes temporaries_at_peak;
  std::string peak_operator;  // that runs at the peak

  // -- Work

  std::int64_t parameter_count = 0;
  std::int64_t operators = 0;  // calls, recomputation included
  double flops = 0;            // floating-point operations, recomputation included
  double recomputed_flops = 0;
  Seconds seconds{}, forward_seconds{}, recompute_seconds{};

  // The step for planners::hindsight() and for simulate(). What existed before it are constants.
  StepTrace trace;

  // The bytes that are there before the step and after it.
  Bytes state() const { return parameters + buffers + optimizer_state + inputs; }
};

// Estimates one step. `loss` runs forward and returns one real number, from which backward starts.
// It is called once, on the calling thread. named() scopes in it become the kinds of activations.
//
// Afterwards the module is as it was: values, gradients, which parameters require them, buffers.
// So are the default generators of the CPU and of the module's devices. Other generators are not
// drawn from, but one that `loss` seeds stays seeded. Writes of `loss` to tensors that it holds
// itself, also to numbers without dimensions, reach stand-ins. Other objects are not watched. A
// tensor that forward assigns to a plain member of a module stays there without memory, and so does
// the state that an optimizer makes if `loss` runs it.
//
// It may be called anywhere but inside another estimate or a MetaTensorsScope. Regions, hooks,
// policies and budgets around the call see nothing of it, and it sees nothing of them.
//
// Thread rules: meanwhile nobody else may use the module, nor rely on draws from the default
// generators if `loss` seeds them. Estimates of different modules may run on several threads at
// once. The first estimate of a process registers shape functions and must not overlap operators of
// other threads. `loss` may run operators on threads of its own with at::ThreadLocalState;
// operators there make the choices of the CPU.
//
// Throws UsageError for
// - a call inside another estimate or a MetaTensorsScope, and an empty function;
// - a device other than CPU and CUDA, shards below 1 or above 2^20, rates of a machine below 1 or
//   above 1e24, an overhead beyond a second, and a step of more than 52 days, which traces do not
//   hold;
// - a result that is no real number with a gradient;
// - an operator whose result depends on values (item(), nonzero), data_ptr() of a tensor, and an
//   operator without a shape function; the text says how to add one;
// - a step under autocast for that device, which tensors without memory do not follow: convert the
//   module instead;
// - a tensor outside of the module that requires a gradient and gets one: register or detach it;
// - a tensor made before the estimate, if backward would continue into its history: make it in
//   `loss`, or detach it;
// - operators on sparse tensors, and set_data() of a tensor outside of the module;
// - checkpoint_sequential() with a budget in bytes, which measures layers: give it a schedule;
// - parameters and buffers that the step registers in a module with memory, for they would have
//   none. This error also replaces an error of `loss`, whose text it repeats.
Estimate estimate_step(torch::nn::Module& module, const std::function<at::Tensor()>& loss,
                       const EstimateOptions& options = {});

}  // namespace reprise
