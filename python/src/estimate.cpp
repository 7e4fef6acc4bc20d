// Estimates of Python modules: their tensors are lent to C++ for the call, and Python runs forward.
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <reprise/error.h>
#include <reprise/estimate.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "record.h"

namespace reprise::python {
namespace {

// The tensors of a Python module under their names. What Python registers in the step is added when
// forward has ended.
class Mirror : public torch::nn::Module {
 public:
  explicit Mirror(py::object module) : python_(std::move(module)) { add_new(); }

  void add_new() {
    each("named_parameters", [](Module& owner, const std::string& name, const at::Tensor& tensor) {
      if (!owner.named_parameters(false).contains(name)) {
        owner.register_parameter(name, tensor, tensor.requires_grad());
      }
    });
    each("named_buffers", [](Module& owner, const std::string& name, const at::Tensor& tensor) {
      if (!owner.named_buffers(false).contains(name)) owner.register_buffer(name, tensor);
    });
  }

 private:
  template <class F>
  void each(const char* method, const F& f) {
    for (const py::handle item : python_.attr(method)()) {
      const auto [path, tensor] = item.cast<std::pair<std::string, at::Tensor>>();
      Module* owner = this;
      std::size_t begin = 0;
      for (std::size_t dot = 0; (dot = path.find('.', begin)) != std::string::npos;
           begin = dot + 1) {
        owner = child(*owner, path.substr(begin, dot - begin));
      }
      f(*owner, path.substr(begin), tensor);
    }
  }
  static Module* child(Module& owner, const std::string& name) {
    const auto children = owner.named_children();
    const auto* const found = children.find(name);
    return (found != nullptr ? *found : owner.register_module(name, std::make_shared<Module>()))
        .get();
  }

  const py::object python_;
};

EstimateOptions options_of(const py::object& device, const Machine& machine,
                           const std::string& optimizer, bool master_weights, std::int64_t shards) {
  EstimateOptions options{.device = device_of(device).type(), .machine = machine, .shards = shards};
  if (optimizer == "sgd") {
    options.optimizer.kind = OptimizerKind::kSgd;
  } else if (optimizer == "adamw") {
    options.optimizer.kind = OptimizerKind::kAdamW;
  } else if (optimizer != "none") {
    throw UsageError("estimate(): the optimizer is '" + optimizer +
                     "'; it is None, 'sgd' (with momentum) or 'adamw'");
  }
  options.optimizer.master_weights = master_weights;
  return options;
}

// `loss` runs forward; its references are given back under the interpreter's lock.
Estimate estimate(const py::object& module, const py::function& loss, const py::object& device,
                  const Machine& machine, const std::string& optimizer, bool master_weights,
                  std::int64_t shards) {
  const EstimateOptions options = options_of(device, machine, optimizer, master_weights, shards);
  Mirror mirror(module);
  const auto run = [&]() -> at::Tensor {
    const py::gil_scoped_acquire gil;
    try {
      const py::object result = loss();
      mirror.add_new();
      return result.cast<at::Tensor>();
    } catch (...) {
      mirror.add_new();
      throw;
    }
  };
  const py::gil_scoped_release no_gil;
  return estimate_step(mirror, run, options);
}

using Kept = std::vector<std::pair<std::string, std::int64_t>>;

Kept kept_of(const Estimate& it) {
  Kept kept;
  for (const auto& item : it.kept) kept.emplace_back(item.kind, item.bytes.count);
  return kept;
}

void bind_machine(py::module_& module) {
  Record<Machine> machine(
      module, "Machine",
      "The rates of a machine, for the seconds of an estimate.\n\n"
      "An operator takes the longer of its arithmetic and of moving its bytes, plus `overhead`.");
  machine.figure("flops", &Machine::flops, "Floating-point operations a second, in f32.")
      .figure("low_precision_flops", &Machine::low_precision_flops, "The same in 16-bit types.")
      .figure("bandwidth", &Machine::bandwidth, "Bytes a second, read and written.")
      .figure("overhead", &Machine::overhead, "Seconds of every call.")
      .pickled();
  machine.type()
      .def(
          py::init([](double flops, double low_precision_flops, double bandwidth, double overhead) {
            return Machine{flops, low_precision_flops, bandwidth, Seconds(overhead)};
          }),
          py::kw_only(), py::arg("flops") = Machine().flops,
          py::arg("low_precision_flops") = Machine().low_precision_flops,
          py::arg("bandwidth") = Machine().bandwidth, py::arg("overhead") = 0.0)
      .def_static(
          "read", &Machine::read, py::arg("file"),
          "Reads a file with the json() of calibrate(). Raises UsageError \"FILE:LINE: ...\".")
      .def_static("parse", &Machine::parse, py::arg("text"), py::arg("origin") = "machine",
                  "The same from a text; `origin` names it in errors.")
      .def("json", &Machine::json, "The rates as text. Raises UsageError for rates out of range.");
  module.def(
      "calibrate",
      [](double seconds) {
        const py::gil_scoped_release no_gil;
        return calibrate(Seconds(seconds));
      },
      py::arg("seconds") = 3.0,
      "Measures this machine's CPU with torch's present number of threads, in about that time.\n\n"
      "Raises UsageError for a time that is not above zero.");
}

}  // namespace

void bind_estimate(py::module_& module) {
  bind_machine(module);
  Record<Estimate>(
      module, "Estimate",
      "The needs of one device in a training step: bytes (int), and times (float, seconds).")
      .figure("peak", &Estimate::peak, "The most bytes live at once.")
      .figure("parameters", &Estimate::parameters, "Bytes there before the step.")
      .figure("buffers", &Estimate::buffers, "Bytes there before the step.")
      .figure("optimizer_state", &Estimate::optimizer_state, "Bytes there before the step.")
      .figure("inputs", &Estimate::inputs,
              "Tensors that the step reads and that nobody makes in it.")
      .figure("gradients", &Estimate::gradients,
              "Bytes of parameters' gradients, at the end of the step.")
      .figure("activations", &Estimate::activations,
              "Made by forward and still held for backward when forward ends.")
      .figure("gradients_at_peak", &Estimate::gradients_at_peak, "A part of the peak.")
      .figure("activations_at_peak", &Estimate::activations_at_peak, "A part of the peak.")
      .figure("temporaries_at_peak", &Estimate::temporaries_at_peak,
              "The rest at the peak: gradients of activations, recomputed values, workspaces.")
      .figure("peak_operator", &Estimate::peak_operator, "The operator that runs at the peak.")
      .figure("parameter_count", &Estimate::parameter_count, "Numbers in parameters.")
      .figure("operators", &Estimate::operators, "Calls, recomputation included.")
      .figure("flops", &Estimate::flops, "Floating-point operations, recomputation included.")
      .figure("recomputed_flops", &Estimate::recomputed_flops, "Those of recomputation.")
      .figure("seconds", &Estimate::seconds, "The step by the machine's rates.")
      .figure("forward_seconds", &Estimate::forward_seconds, "Those of forward.")
      .figure("recompute_seconds", &Estimate::recompute_seconds, "Those of recomputation.")
      .detail(
          "state", &Estimate::state,
          "parameters + buffers + optimizer_state + inputs: there before the step and after it.")
      .detail(
          "kept", &kept_of,
          "The parts of `activations`, largest first: a list of (kind, bytes). A kind is a module's "
          "path without numbers and an operator: \"blocks.mlp/gelu\".")
      .kept(&kept_of,
            [](Estimate& it, const Kept& kept) {
              for (const auto& [kind, bytes] : kept) it.kept.push_back({kind, Bytes(bytes)});
            })
      .detail("trace", &Estimate::trace, "The step as a StepTrace, to try budgets on and to plan.")
      .pickled([](const py::tuple& values) {
        return Estimate(values[values.size() - 1].cast<StepTrace>());
      });
  module.def("estimate", &estimate);
}

}  // namespace reprise::python
