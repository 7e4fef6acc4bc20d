// Lending, running, reading off.
#include <c10/util/Exception.h>
#include <reprise/error.h>
#include <reprise/estimate.h>
#include <reprise/random_state.h>
#include <torch/nn/module.h>

#include <exception>
#include <string>
#include <string_view>

#include "estimate/account.h"
#include "estimate/step_checks.h"
#include "estimate/step_watch.h"
#include "libtorch/autograd/between_nodes.h"
#include "libtorch/autograd/engine.h"
#include "libtorch/base/state_apart.h"
#include "libtorch/meta/lent_to_meta.h"
#include "libtorch/meta/on_meta.h"
#include "libtorch/meta/shape_functions.h"
#include "libtorch/operators/operator_interceptor.h"

namespace reprise {

namespace {

using estimate::Account;
using estimate::Registered;
using estimate::StepWatch;
using estimate::Timeline;

// Of one device, each tensor of it as handed out.
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
    const std::int64_t part = estimate::part_of(each.numel() * width, options.shards);
    sum += (states + (has_master ? 1 : 0)) * estimate::handed_out(part, options.device);
  }
  return sum;
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

// The default generators of the CPU and of the module's devices, which operators of a step without
// memory do not draw from, but which it may seed.
class GeneratorsAsTheyWere {
 public:
  explicit GeneratorsAsTheyWere(const std::vector<at::Tensor>& tensors)
      : state_(RandomState::of_devices(accelerator_devices(tensors))) {}
  ~GeneratorsAsTheyWere() {
    try {
      if (!state_.is_current()) state_.restore();
    } catch (const std::exception& error) {
      TORCH_WARN("estimate_step(): random generators could not be put back: ", error.what());
    }
  }
  GeneratorsAsTheyWere(const GeneratorsAsTheyWere&) = delete;
  GeneratorsAsTheyWere& operator=(const GeneratorsAsTheyWere&) = delete;

 private:
  const RandomState state_;
};

void run_step(const std::function<at::Tensor()>& loss, const std::shared_ptr<StepWatch>& watch) {
  const libtorch::OperatorInterceptorScope scope(watch, libtorch::Reach::kBackwardAsWell);
  const libtorch::NodeFunctionsSeen functions_seen;
  const c10::AutoGradMode with_graph(true);
  const GradientsElsewhere dropped(*watch);
  try {
    const at::Tensor result = loss();
    estimate::check_loss(result);
    if (const std::string sizes = watch->made_before(&result); !sizes.empty()) {
      estimate::refuse_made_before(sizes);
    }
    watch->begin_backward();
    result.backward();
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    if (text.find("but got meta") == std::string_view::npos) throw;
    const std::string before = watch->made_before(nullptr), trained = watch->trained_elsewhere();
    if (!before.empty()) estimate::refuse_made_before(before);
    if (!trained.empty()) estimate::refuse_trained_elsewhere(trained);
    throw;
  }
}

}  // namespace

struct MetaTensorsScope::Impl {
  libtorch::OperatorInterceptorScope scope{std::make_shared<libtorch::OnMeta>(),
                                           libtorch::Reach::kBackwardAsWell};
};

MetaTensorsScope::MetaTensorsScope() {
  libtorch::ensure_shape_functions();
  impl_ = std::make_unique<Impl>();
}
MetaTensorsScope::~MetaTensorsScope() = default;

Estimate estimate_step(torch::nn::Module& module, const std::function<at::Tensor()>& loss,
                       const EstimateOptions& options) {
  estimate::check_called(loss, options);
  const libtorch::ThreadStateScope apart(libtorch::state_apart());
  libtorch::ensure_engine_front();
  const Registered registered(module);
  const GeneratorsAsTheyWere generators(registered.all());
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
    registered.check(error.what());
    throw;
  }
  registered.check("");
  Estimate estimate = Account(*timeline, options, optimizer_state).estimate();
  estimate.parameter_count = parameter_count;
  return estimate;
}

}  // namespace reprise
