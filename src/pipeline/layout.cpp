#include "pipeline/layout.h"

#include <ATen/DeviceAccelerator.h>
#include <reprise/error.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>

namespace reprise::pipeline {
namespace {

bool has_two_stages_a_worker(const std::string& name) {
  return name == "zbv" || name == "dualpipev";
}

std::int64_t stages_of(const PipelineOptions& options) {
  return static_cast<std::int64_t>(options.balance.size());
}

std::int64_t workers_of(const PipelineOptions& options) {
  if (options.custom_schedule.stages > 0) {
    return static_cast<std::int64_t>(options.custom_schedule.workers.size());
  }
  if (!options.devices.empty()) return static_cast<std::int64_t>(options.devices.size());
  return has_two_stages_a_worker(options.schedule) ? stages_of(options) / 2 : stages_of(options);
}

void check_balance(const std::vector<std::int64_t>& balance, std::size_t layers) {
  if (layers == 0) throw UsageError("Pipeline: the model has no layers");
  std::string text;
  for (std::size_t i = 0; i < balance.size(); ++i) {
    if (balance[i] < 1) {
      throw UsageError("Pipeline: balance[" + std::to_string(i) + "] is " +
                       std::to_string(balance[i]) + "; each stage needs at least 1 layer");
    }
    text += (i == 0 ? "" : " + ") + std::to_string(balance[i]);
  }
  const auto sum = std::accumulate(balance.begin(), balance.end(), std::int64_t{0});
  if (sum == static_cast<std::int64_t>(layers)) return;
  throw UsageError("Pipeline: the balance (" + (text.empty() ? "empty" : text) + ") gives " +
                   std::to_string(sum) + " layers, and the model has " + std::to_string(layers) +
                   "; name the number of layers of each stage, or let balance_by_time() choose it");
}

void check_options(const PipelineOptions& options) {
  if (options.chunks < 1) {
    throw UsageError("Pipeline: chunks is " + std::to_string(options.chunks) +
                     "; a mini-batch is cut into at least 1 micro-batch");
  }
  if (options.checkpoint_stop && *options.checkpoint_stop < 0) {
    throw UsageError("Pipeline: checkpoint_stop is " + std::to_string(*options.checkpoint_stop) +
                     "; micro-batches below it are checkpointed, so it is at least 0 (none)");
  }
  if (!options.bytes.empty() && options.checkpoint_stop) {
    throw UsageError("Pipeline: both bytes and checkpoint_stop (" +
                     std::to_string(*options.checkpoint_stop) +
                     ") are given; bytes plans what is recomputed, so leave one of them out");
  }
  for (std::size_t i = 0; i < options.bytes.size(); ++i) {
    if (options.bytes[i] > Bytes(0)) continue;
    throw UsageError("Pipeline: bytes[" + std::to_string(i) + "] is " +
                     std::to_string(options.bytes[i].count) + "; it must be at least 1");
  }
  if (options.threads < 0) {
    throw UsageError("Pipeline: threads is " + std::to_string(options.threads) +
                     "; give at least 1, or 0 for as many as the caller has");
  }
  if (options.regions.reentrant) {
    throw UsageError(
        "Pipeline: regions.reentrant is not supported; a stage's recomputation is a "
        "step of its schedule, and not part of a backward call");
  }
  if (options.regions.skip_zero_gradients) {
    throw UsageError(
        "Pipeline: regions.skip_zero_gradients is not supported; a stage's recomputation "
        "starts before its gradient is there");
  }
  detail::check_options(options.regions);
}

// With its index.
c10::Device checked(c10::Device device) {
  if (device.is_cpu()) return c10::kCPU;
  const auto accelerator = at::accelerator::getAccelerator();
  const c10::DeviceIndex count =
      accelerator == device.type() ? at::accelerator::deviceCount() : c10::DeviceIndex{0};
  if (!device.has_index() && count > 0) {
    return {device.type(), at::accelerator::getDeviceIndex()};
  }
  if (device.has_index() && device.index() < count) return device;
  throw UsageError("Pipeline: there is no device " + device.str() + "; this machine has " +
                   std::to_string(count) + " of that type");
}

void check_shared(const std::vector<PipelineLayer>& layers, const Layout& layout) {
  std::unordered_map<const void*, std::int64_t> stage_of;
  for (std::int64_t s = 0; s < static_cast<std::int64_t>(layout.stages.size()); ++s) {
    const auto& stage = layout.stages[static_cast<std::size_t>(s)];
    for (std::int64_t l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
      const PipelineLayer& layer = layers[static_cast<std::size_t>(l)];
      for (const auto* tensors : {&layer.parameters, &layer.buffers}) {
        for (const at::Tensor& tensor : *tensors) {
          if (!tensor.defined()) continue;
          const auto [known, is_new] = stage_of.emplace(tensor.unsafeGetTensorImpl(), s);
          if (is_new || known->second == s) continue;
          throw UsageError("Pipeline: layer " + std::to_string(l) + " (" + layer.name +
                           ") shares a " + (tensors == &layer.parameters ? "parameter" : "buffer") +
                           " with stage " + std::to_string(known->second) + ", and is in stage " +
                           std::to_string(s) +
                           "; layers that share one must be in one stage, or give each its own");
        }
      }
    }
  }
}

void add_skips(const std::vector<PipelineLayer>& layers, Layout& layout) {
  const auto stage_of = [&](std::int64_t layer) {
    std::size_t stage = 0;
    while (layer >= layout.stages[stage].first_layer + layout.stages[stage].layers) ++stage;
    return stage;
  };
  for (const Skip& skip : skips_of(layers)) {
    const std::size_t from = stage_of(skip.from);
    const std::size_t to = stage_of(skip.to);
    if (from == to) continue;
    auto& sends = layout.stages[from].sends;
    auto& takes = layout.stages[to].takes;
    sends.push_back(layout.skips.size());
    takes.push_back(layout.skips.size());
    layout.skips.push_back({skip.name, static_cast<std::int64_t>(from),
                            static_cast<std::int64_t>(to), static_cast<std::int64_t>(sends.size()),
                            static_cast<std::int64_t>(takes.size())});
  }
}

}  // namespace

PipelineSchedule schedule_for(const PipelineOptions& options, std::int64_t micro_batches) {
  const std::int64_t stages = stages_of(options);
  const std::int64_t workers = workers_of(options);
  if (options.custom_schedule.stages > 0) {
    const PipelineSchedule& own = options.custom_schedule;
    own.check();
    if (own.stages != stages || own.micro_batches != micro_batches) {
      throw UsageError("Pipeline: the schedule '" + own.name + "' is for " +
                       std::to_string(own.stages) + " stages and " +
                       std::to_string(own.micro_batches) + " micro-batches, and there are " +
                       std::to_string(stages) + " and " + std::to_string(micro_batches));
    }
    return own;
  }
  if (workers < 1 || stages % workers != 0) {
    throw UsageError("Pipeline: " + std::to_string(stages) +
                     " stages cannot be shared evenly among " + std::to_string(workers) +
                     " workers; give a balance with a multiple of that");
  }
  return schedules::by_name(options.schedule, workers, stages / workers, micro_batches);
}

c10::Device Layout::device_of(std::int64_t worker) const {
  for (const StagePart& stage : stages) {
    if (stage.worker == worker) return stage.device;
  }
  return c10::kCPU;
}

Layout layout_of(const std::vector<PipelineLayer>& layers, const PipelineOptions& options) {
  check_options(options);
  check_balance(options.balance, layers.size());
  Layout layout;
  layout.workers = workers_of(options);
  if (!options.devices.empty() &&
      static_cast<std::int64_t>(options.devices.size()) != layout.workers) {
    throw UsageError("Pipeline: there are " + std::to_string(options.devices.size()) +
                     " devices for the " + std::to_string(layout.workers) +
                     " workers of the schedule; name one for each");
  }
  if (options.bytes.size() > 1 &&
      static_cast<std::int64_t>(options.bytes.size()) != layout.workers) {
    throw UsageError("Pipeline: bytes has " + std::to_string(options.bytes.size()) +
                     " numbers for the " + std::to_string(layout.workers) +
                     " workers; give one for all, or one for each worker");
  }
  std::vector<c10::Device> devices;
  for (const c10::Device& device : options.devices) devices.push_back(checked(device));
  const auto worker_of_stage = schedule_for(options, options.chunks).worker_of_stage();
  std::int64_t first = 0;
  for (std::size_t s = 0; s < options.balance.size(); ++s) {
    Layout::StagePart& stage = layout.stages.emplace_back();
    stage.first_layer = first;
    stage.layers = options.balance[s];
    stage.worker = worker_of_stage[s];
    if (!devices.empty()) stage.device = devices[static_cast<std::size_t>(stage.worker)];
    first += stage.layers;
  }
  check_shared(layers, layout);
  add_skips(layers, layout);
  return layout;
}

}  // namespace reprise::pipeline
