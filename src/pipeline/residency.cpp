#include "pipeline/residency.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <reprise/error.h>

#include <algorithm>
#include <unordered_set>

#include "region/profile_chain.h"

namespace reprise::pipeline {
namespace {

constexpr std::size_t kMostKnown = 64;

std::string form_of(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += tensor.toString() + tensor.device().str() + (tensor.requires_grad() ? "+" : "-");
    for (const std::int64_t size : tensor.sizes()) text += std::to_string(size) + "x";
    for (const std::int64_t stride : tensor.strides()) text += std::to_string(stride) + ",";
  }
  return text;
}

// Names all that the seconds and bytes of the stages depend on.
std::string kind_of(const Core& core, const PlanRequest& request) {
  std::string text = request.schedule.name + std::to_string(request.schedule.micro_batches) +
                     form_of(request.input) + "|" + form_of(request.target) +
                     (request.loss ? "L" : "F");
  for (const PipelineLayer& layer : core.layers) {
    text += layer.is_training && layer.is_training() ? "t" : "e";
    for (const at::Tensor& parameter : layer.parameters) {
      text += parameter.requires_grad() ? "+" : "-";
      text += parameter.toString();
    }
  }
  for (const Layout::StagePart& part : core.layout.stages) {
    const auto type = part.device.type();
    if (at::autocast::is_autocast_enabled(type))
      text += toString(at::autocast::get_autocast_dtype(type));
  }
  return text;
}

[[noreturn]] void refuse_layer(const PipelineLayer& layer, const std::string& reason) {
  throw UsageError("Pipeline: bytes is given, and layer " + layer.name + " " + reason +
                   "; a residency is planned for layers that take and return one tensor, so leave "
                   "bytes out and choose by checkpoint or checkpoint_stop");
}

void check_layers(const Core& core, const PlanRequest& request) {
  for (const PipelineLayer& layer : core.layers) {
    if (!layer.stashes.empty() || !layer.pops.empty()) refuse_layer(layer, "has skip connections");
  }
  if (request.input.size() != 1) {
    refuse_layer(core.layers.front(), "takes " + std::to_string(request.input.size()) + " tensors");
  }
}

// Whether input and weight gradients come apart.
bool is_split(const PipelineSchedule& schedule) {
  for (const auto& worker : schedule.workers) {
    for (const PipelineSlot& slot : worker) {
      for (const PipelineAction& action : slot) {
        if (action.work == PipelineWork::kWeightGradient) return true;
      }
    }
  }
  return false;
}

Bytes bytes_of(const at::Tensor& tensor) {
  return Bytes(static_cast<std::int64_t>(tensor.nbytes()));
}

// Allocators hand out multiples of that.
constexpr std::int64_t kPiece = 512;

// Parameters with their gradients, and buffers. Losses and other single numbers have their share,
// one a micro-batch and a few more.
Bytes resident_of(const Stage& stage, std::int64_t micro_batches) {
  Bytes bytes = Bytes(kPiece) * (micro_batches + 2);
  std::unordered_set<const void*> seen;
  const auto add = [&](const at::Tensor& tensor, std::int64_t times) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    const std::int64_t count = bytes_of(tensor).count;
    const bool has_pieces = !tensor.device().is_cpu();
    bytes += Bytes(has_pieces ? (count + kPiece - 1) / kPiece * kPiece : count) * times;
  };
  for (const PipelineLayer& layer : stage.layers) {
    for (const at::Tensor& each : layer.parameters) add(each, each.requires_grad() ? 2 : 1);
    for (const at::Tensor& each : layer.buffers) add(each, 1);
  }
  return bytes;
}

// Runs with the threads that a worker has.
class WorkersThreads {
 public:
  explicit WorkersThreads(int threads) : before_(at::get_num_threads()) {
    if (threads > 0) at::set_num_threads(threads);
  }
  ~WorkersThreads() { at::set_num_threads(before_); }
  WorkersThreads(const WorkersThreads&) = delete;
  WorkersThreads& operator=(const WorkersThreads&) = delete;

 private:
  const int before_;
};

class StageProfiler {
 public:
  StageProfiler(const Core& core, const PlanRequest& request) : core_(core), request_(request) {
    for (std::size_t s = 0; s < core.stages.size(); ++s) add(s);
  }

  std::vector<PipelineStageProfile> profiles;
  std::vector<bool> copies_input;  // of each stage

 private:
  detail::Layers layers_of(const Stage& stage) const {
    detail::Layers layers;
    for (const PipelineLayer& layer : stage.layers) {
      layers.functions.push_back([&layer](const at::Tensor& x) {
        Tensors made = layer.forward({x});
        if (made.size() != 1) {
          refuse_layer(layer, "returns " + std::to_string(made.size()) + " tensors");
        }
        return made.front();
      });
      layers.names.push_back(layer.name);
      layers.parameters.insert(layers.parameters.end(), layer.parameters.begin(),
                               layer.parameters.end());
      layers.buffers.insert(layers.buffers.end(), layer.buffers.begin(), layer.buffers.end());
      if (layer.state) layers.states.push_back(layer.state);
    }
    return layers;
  }

  void add(std::size_t s) {
    const Stage& stage = *core_.stages[s];
    const at::Tensor& given = s == 0 ? request_.input.front() : output_;
    wait_for(given.device());
    const at::Tensor sample = given.detach().to(stage.device).set_requires_grad(requires_grad(s));
    wait_for(stage.device);
    detail::Layers layers = layers_of(stage);
    if (s + 1 == core_.stages.size() && request_.loss) {
      layers.functions.push_back(request_.loss);
      layers.names.emplace_back("loss");
    }
    region::ProfiledPart part =
        region::profile_part(layers, sample, is_split(request_.schedule), {});
    PipelineStageProfile& profile = profiles.emplace_back();
    profile.layers = std::move(part.chain);
    // A view of the mini-batch is the caller's.
    if (s > 0 || given.device() != stage.device) profile.input = bytes_of(sample);
    // The stage's input may stay until the weight gradients.
    profile.input_gradient_peak = part.apart.input_gradient_peak;
    profile.kept_for_weights = part.apart.kept + profile.input;
    profile.weight_gradient_peak = part.apart.weight_gradient_peak + profile.input;
    profile.input_gradient = part.apart.input_gradient;
    profile.weight_gradient = part.apart.weight_gradient;
    profile.resident = resident_of(stage, request_.schedule.micro_batches);
    copies_input.push_back(part.copies_input);
    output_ = std::move(part.output);
    output_requires_grad_ = part.output_requires_grad;
  }

  static void wait_for(c10::Device device) {
    if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
  }

  bool requires_grad(std::size_t stage) const {
    return stage == 0 ? request_.input.front().requires_grad() : output_requires_grad_;
  }

  const Core& core_;
  const PlanRequest& request_;
  at::Tensor output_;
  bool output_requires_grad_ = false;
};

std::shared_ptr<const StagePlan> stage_plan_of(const PipelineStageProfile& profile,
                                               const Schedule& schedule, bool copies_input,
                                               bool is_split) {
  auto made = std::make_shared<StagePlan>();
  std::size_t begin = 0;
  for (const ChainStage& stage : profile.layers.stages) {
    const std::size_t end = begin + static_cast<std::size_t>(stage.layers);
    made->parts.push_back({begin, end});
    begin = end;
  }
  made->nests = plan::nests_of(schedule, std::ssize(profile.layers.stages) + 1);
  made->nests.pop_back();  // the rest of the step
  made->copies_input = copies_input;
  made->recomputes_all_ahead = is_split;
  return made;
}

}  // namespace

std::shared_ptr<const PlannedResidency> ResidencyPlans::plan_for(const Core& core,
                                                                 const PlanRequest& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string kind = kind_of(core, request);
  for (const auto& [known, plan] : known_) {
    if (known == kind) return plan;
  }
  check_layers(core, request);
  const WorkersThreads threads(core.options.threads);
  const StageProfiler measured(core, request);
  auto planned = std::make_shared<PlannedResidency>();
  planned->plan = plan_residency(request.schedule, measured.profiles, core.options.bytes);
  const bool split = is_split(request.schedule);
  for (std::size_t s = 0; s < measured.profiles.size(); ++s) {
    auto& choices = planned->choices.emplace_back();
    for (const Schedule& schedule : planned->plan.stages[s].schedules) {
      choices.push_back(
          stage_plan_of(measured.profiles[s], schedule, measured.copies_input[s], split));
    }
  }
  if (known_.size() >= kMostKnown) known_.erase(known_.begin());
  known_.emplace_back(kind, planned);
  return planned;
}

}  // namespace reprise::pipeline
