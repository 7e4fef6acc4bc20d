// Input and weight gradients made apart, as pipelines with zero bubbles make them: how long each takes,
// and what stays between the two.
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/ones_like.h>
#include <reprise/memory.h>

#include <utility>

#include "core/clock.h"
#include "libtorch/autograd/quiet_leaves.h"
#include "libtorch/autograd/stage_graph.h"
#include "region/profile_chain.h"

namespace reprise::region {
namespace {

void wait_for(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

ProfiledPart::Apart measure_once(const std::vector<TensorFunction>& functions,
                                 const at::Tensor& sample) {
  const c10::Device device = sample.device();
  ProfiledPart::Apart apart;
  libtorch::StageGraph graph;
  const Bytes before = live_bytes(device);
  at::Tensor gradient;
  {
    at::Tensor tensor = graph.enter({sample}, {sample.requires_grad()}).front();
    for (const TensorFunction& function : functions) tensor = function(tensor);
    graph.leave({tensor});
    if (!tensor.requires_grad()) return apart;
    gradient = at::ones_like(tensor.detach());
  }
  {
    const PeakScope peak(device);
    wait_for(device);
    const Stopwatch watch;
    const std::vector<at::Tensor> made = graph.backward_inputs({std::move(gradient)});
    wait_for(device);
    apart.input_gradient = watch.elapsed();
    apart.input_gradient_peak = peak.peak() - before;
  }
  apart.kept = live_bytes(device) - before;
  const PeakScope peak(device);
  const Stopwatch watch;
  graph.backward_weights();
  wait_for(device);
  apart.weight_gradient = watch.elapsed();
  apart.weight_gradient_peak = peak.peak() - before;
  return apart;
}

}  // namespace

ProfiledPart::Apart profile_apart(const std::vector<TensorFunction>& functions,
                                  const at::Tensor& sample,
                                  const std::vector<at::Tensor>& parameters) {
  const libtorch::QuietLeaves quiet(parameters);
  // The first run is not counted.
  measure_once(functions, sample);
  return measure_once(functions, sample);
}

}  // namespace reprise::region
