// Lending, running, reading off.
#include <c10/util/Exception.h>
#include <reprise/error.h>
#include <reprise/estimate.h>
#include <torch/nn/module.h>

#include <exception>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "estimate/account.h"
#include "estimate/machine_rates.h"
#include "estimate/step_watch.h"
#include "libtorch/lent_to_meta.h"
#include "libtorch/on_meta.h"
#include "libtorch/operator_interceptor.h"
#include "libtorch/shape_functions.h"

namespace reprise {

namespace {

using estimate::Account;
using estimate::StepWatch;
using estimate::Timeline;

void check_options(const EstimateOptions& options) {
  if (options.device != c10::kCPU && options.device != c10::kCUDA) {
    throw UsageError("estimate_step(): the device is " +
                     c10::DeviceTypeName(options.device, /*lower_case=*/true) +
                     "; it must be cpu or cuda, whose operators' choices are known");
  }
  if (options.shards < 1) {
    throw UsageError("estimate_step(): shards is " + std::to_string(options.shards) +
                     "; it must be at least 1, the device alone");
  }
  estimate::check_rates(options.machine, "estimate_step()");
}

void check_loss(const at::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad()) return;
  throw UsageError(
      "estimate_step(): the function must give one number that depends on parameters, where "
      "backward can start; it gave " +
      (loss.defined() ? std::to_string(loss.numel()) + " numbers" +
                            (loss.requires_grad() ? "" : " without a gradient")
                      : std::string("nothing")));
}

std::int64_t optimizer_bytes(const std::vector<at::Tensor>& parameters,
                             const EstimateOptions& options) {
  const std::int64_t states = options.optimizer.kind == OptimizerKind::kNone  ? 0
                              : options.optimizer.kind == OptimizerKind::kSgd ? 1
                                                                              : 2;
  std::int64_t sum = 0;
  for (const at::Tensor& each : parameters) {
    if (!each.requires_grad() || states == 0) continue;
    const bool has_master = options.optimizer.master_weights && each.itemsize() == 2;
    const std::int64_t width = has_master ? 4 : each.itemsize();
    sum += (states + (has_master ? 1 : 0)) *
           estimate::handed_out(each.numel() * width, options.device);
  }
  return sum;
}

// Each tensor once, however many names it has.
std::vector<at::Tensor> distinct(std::vector<at::Tensor> tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(tensors, [&](const at::Tensor& each) {
    return !each.defined() || !seen.insert(each.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

// The tensors that a module has before a step, which a step may add to.
class Registered {
 public:
  explicit Registered(torch::nn::Module& module)
      : module_(module),
        parameters_(distinct(module.parameters())),
        buffers_(distinct(module.buffers())) {
    for (const at::Tensor& each : all()) {
      seen_.insert(each.unsafeGetTensorImpl());
      has_memory_ |= !each.is_meta();
    }
  }

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> tensors = parameters_;
    tensors.insert(tensors.end(), buffers_.begin(), buffers_.end());
    return tensors;
  }

  // What of the module has no memory now, for the step made it; empty: nothing, or nothing of it
  // had any.
  std::string without_memory() const {
    std::string names;
    const auto add = [&](const auto& items) {
      for (const auto& item : items) {
        const at::Tensor& tensor = item.value();
        if (!has_memory_ || !tensor.defined() || !tensor.is_meta()) continue;
        if (seen_.contains(tensor.unsafeGetTensorImpl())) continue;
        names += (names.empty() ? "\"" : ", \"") + item.key() + "\"";
      }
    };
    add(module_.named_parameters());
    add(module_.named_buffers());
    return names;
  }

 private:
  torch::nn::Module& module_;
  std::vector<at::Tensor> parameters_, buffers_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  bool has_memory_ = false;
};

void check_registered(const Registered& registered, const std::string& failure) {
  const std::string names = registered.without_memory();
  if (names.empty()) return;
  throw UsageError("estimate_step(): the step registered parameters or buffers of the module, " +
                   names + ", which have no memory now; build the module anew, and have them " +
                   "registered before the estimate: in a constructor, or by a step that is run" +
                   (failure.empty() ? "" : " (and the step failed: " + failure + ")"));
}

[[noreturn]] void refuse_trained_elsewhere(const std::string& sizes) {
  throw UsageError("estimate_step(): a tensor outside of the module, of sizes " + sizes +
                   ", requires a gradient; register it in the module, or detach() it for the "
                   "estimate");
}

// However the step ends, what it gave to tensors outside of the module is taken away.
class GradientsElsewhere {
 public:
  explicit GradientsElsewhere(StepWatch& watch) : watch_(watch) {}
  ~GradientsElsewhere() { watch_.drop_gradients_elsewhere(); }
  GradientsElsewhere(const GradientsElsewhere&) = delete;
  GradientsElsewhere& operator=(const GradientsElsewhere&) = delete;

 private:
  StepWatch& watch_;
};

void run_step(const std::function<at::Tensor()>& loss, const std::shared_ptr<StepWatch>& watch) {
  const libtorch::OperatorInterceptorScope scope(watch, libtorch::Reach::kBackwardAsWell);
  const c10::AutoGradMode with_graph(true);
  const GradientsElsewhere dropped(*watch);
  try {
    const at::Tensor result = loss();
    check_loss(result);
    watch->begin_backward();
    result.backward();
  } catch (const c10::Error& error) {
    const std::string sizes = watch->trained_elsewhere();
    const std::string_view text = error.what_without_backtrace();
    if (!sizes.empty() && text.find("but got meta") != std::string_view::npos) {
      refuse_trained_elsewhere(sizes);
    }
    throw;
  }
}

}  // namespace

struct MetaTensors::Impl {
  libtorch::OperatorInterceptorScope scope{std::make_shared<libtorch::OnMeta>(),
                                           libtorch::Reach::kBackwardAsWell};
};

MetaTensors::MetaTensors() {
  libtorch::ensure_shape_functions();
  impl_ = std::make_unique<Impl>();
}
MetaTensors::~MetaTensors() = default;

Estimate estimate_step(torch::nn::Module& module, const std::function<at::Tensor()>& loss,
                       const EstimateOptions& options) {
  check_options(options);
  const Registered registered(module);
  const auto timeline = std::make_shared<Timeline>();
  const auto watch = std::make_shared<StepWatch>(options, timeline);
  std::int64_t parameter_count = 0, optimizer_state = 0;
  try {
    const libtorch::LentToMeta lent(registered.all());
    const libtorch::ShapesOfDevice shapes(options.device);
    for (const at::Tensor& each : registered.parameters()) {
      watch->know(each, Timeline::Role::kParameter);
      parameter_count += each.numel();
    }
    for (const at::Tensor& each : registered.buffers()) watch->know(each, Timeline::Role::kBuffer);
    optimizer_state = optimizer_bytes(registered.parameters(), options);
    libtorch::run_on_meta([&] { run_step(loss, watch); });
    watch->note_gradients(registered.parameters());
    timeline->close();
  } catch (const std::exception& error) {
    timeline->close();
    check_registered(registered, error.what());
    throw;
  }
  check_registered(registered, "");
  Estimate estimate = Account(*timeline, options, optimizer_state).estimate();
  estimate.parameter_count = parameter_count;
  return estimate;
}

}  // namespace reprise
