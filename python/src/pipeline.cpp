// Pipelines from Python: models of Python modules, cut into stages. The class Pipeline of
// reprise/pipeline.py is what programs see; it holds the layers.
#include <pybind11/stl.h>
#include <reprise/error.h>
#include <reprise/pipeline.h>
#include <reprise/skip.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "checkpoint_options.h"
#include "checkpoint_policy.h"
#include "pipeline_layers.h"

namespace reprise::python {
namespace {

using Tensors = std::vector<at::Tensor>;

CheckpointMode mode_of(const std::string& name) {
  if (name == "always") return CheckpointMode::kAlways;
  if (name == "except_last") return CheckpointMode::kExceptLast;
  if (name == "never") return CheckpointMode::kNever;
  throw UsageError("Pipeline: checkpoint is '" + name +
                   "'; it is 'always', 'except_last' or 'never'");
}

LossReduction reduction_of(const std::string& name) {
  if (name == "mean") return LossReduction::kMean;
  if (name == "sum") return LossReduction::kSum;
  throw UsageError("Pipeline.step(): reduction is '" + name + "'; it is 'mean' or 'sum'");
}

std::vector<Bytes> all_bytes_of(const py::object& value) {
  std::vector<Bytes> bytes;
  if (value.is_none()) return bytes;
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value)) {
    return {bytes_of(value, "Pipeline: bytes")};
  }
  for (const py::handle each : value) bytes.push_back(bytes_of(each, "Pipeline: bytes"));
  return bytes;
}

PipelineOptions options_of(const py::dict& given, const py::object& holder) {
  PipelineOptions options;
  options.balance = option_as<std::vector<std::int64_t>>(given["balance"], "Pipeline: balance",
                                                         "numbers of layers");
  for (const py::handle device : given["devices"]) options.devices.push_back(device_of(device));
  options.chunks = option_as<std::int64_t>(given["chunks"], "Pipeline: chunks");
  options.checkpoint = mode_of(option_as<std::string>(given["checkpoint"], "Pipeline: checkpoint"));
  options.checkpoint_stop = option_as<std::optional<std::int64_t>>(
      given["checkpoint_stop"], "Pipeline: checkpoint_stop", "an int or None");
  options.bytes = all_bytes_of(given["bytes"]);
  if (py::isinstance<py::str>(given["schedule"])) {
    options.schedule = given["schedule"].cast<std::string>();
  } else {
    options.custom_schedule = option_as<PipelineSchedule>(given["schedule"], "Pipeline: schedule",
                                                          "a name or a PipelineSchedule");
  }
  options.deferred_batch_norm =
      option_as<bool>(given["deferred_batch_norm"], "Pipeline: deferred_batch_norm");
  options.threads = option_as<int>(given["threads"], "Pipeline: threads");
  options.regions = checkpoint_options(given["region_flags"].cast<long>());
  options.regions.debug = option_as<bool>(given["debug"], "Pipeline: debug");
  if (!given["selective"].is_none()) {
    options.regions.context = selective(given["selective"].cast<const Selective&>().policy);
  }
  if (given["observed"].cast<bool>()) options.on_event = observer_of(holder);
  return options;
}

// A pipeline, and who runs it.
class OwnedPipeline {
 public:
  OwnedPipeline(const py::list& holder, const py::dict& options)
      : pipeline_(
            std::make_unique<Pipeline>(pipeline_layers(holder), options_of(options, holder))) {}
  ~OwnedPipeline() {
    // A forked child has no workers whose end it could wait for.
    if (process_ != ::getpid()) static_cast<void>(pipeline_.release());
    const py::gil_scoped_release no_gil;
    pipeline_.reset();
  }
  OwnedPipeline(const OwnedPipeline&) = delete;
  OwnedPipeline& operator=(const OwnedPipeline&) = delete;

  const Pipeline& get() const { return *pipeline_; }

  // Runs work(pipeline) without the interpreter's lock: its layers take it.
  template <class Work>
  auto run(const char* call, const Work& work) {
    if (process_ != ::getpid()) {
      throw UsageError(std::string("Pipeline.") + call +
                       "(): the pipeline was made before this process was forked, and its workers "
                       "are in the parent; make one here");
    }
    if (is_running_.exchange(true)) {
      throw UsageError(std::string("Pipeline.") + call +
                       "(): the pipeline is running already, on another thread or around this "
                       "layer; one call at a time");
    }
    const struct Ends {
      std::atomic<bool>& is_running;
      ~Ends() { is_running = false; }
    } ends{is_running_};
    const py::gil_scoped_release no_gil;
    return work(*pipeline_);
  }

 private:
  const pid_t process_ = ::getpid();
  std::atomic<bool> is_running_{false};
  std::unique_ptr<Pipeline> pipeline_;
};

py::object given_back(const Tensors& tensors) {
  return py::reinterpret_steal<py::object>(value_of(tensors).release());
}

py::object forward(OwnedPipeline& pipeline, const py::object& input) {
  Tensors given = tensors_of(input, "forward() was given");
  return given_back(
      pipeline.run("forward", [&](Pipeline& it) { return it.forward(std::move(given)); }));
}

py::tuple step(OwnedPipeline& pipeline, const py::object& input, const py::object& target,
               const py::object& loss, const std::string& reduction, bool outputs) {
  Tensors inputs = tensors_of(input, "step() was given as input");
  Tensors targets = tensors_of(target, "step() was given as target");
  const StepOptions options{reduction_of(reduction), outputs};
  const auto function = loss_of(loss);
  const StepResult result = pipeline.run("step", [&](Pipeline& it) {
    return it.step_tensors(std::move(inputs), std::move(targets), function, options);
  });
  return py::make_tuple(result.loss, outputs ? given_back(result.outputs) : py::none());
}

PipelineResidency plan(OwnedPipeline& pipeline, const at::Tensor& input,
                       const std::optional<at::Tensor>& target, const py::object& loss) {
  if (target.has_value() != !loss.is_none()) {
    throw UsageError(
        "Pipeline.plan(): give both a target and a loss, for step(), or neither, for forward()");
  }
  if (!target) return pipeline.run("plan", [&](Pipeline& it) { return it.plan(input); });
  const auto function = loss_of(loss);
  return pipeline.run("plan", [&](Pipeline& it) {
    return it.plan(input, *target, [&](const at::Tensor& output, const at::Tensor& expected) {
      return function({output}, {expected});
    });
  });
}

void bind_skips(py::module_& module) {
  module.def(
      "stash",
      [](const std::string& name, const std::optional<at::Tensor>& tensor) {
        stash(name, tensor.value_or(at::Tensor()));
      },
      py::arg("name"), py::arg("tensor"),
      "Keeps the tensor, or None, until a later layer pops it.\n\n"
      "Raises UsageError outside of a pipeline and a SkipScope, for a name that is stashed already, and\n"
      "in a pipeline for one that the layer does not declare.");
  module.def(
      "pop",
      [](const std::string& name) -> std::optional<at::Tensor> {
        at::Tensor tensor = pop(name);
        return tensor.defined() ? std::optional(tensor) : std::nullopt;
      },
      py::arg("name"),
      "Takes what was stashed by that name. Raises UsageError where stash() does, and for a name that is\n"
      "not stashed.");
  py::class_<SkipNamespace>(
      module, "SkipNamespace",
      "Makes names of one copy of a block that occurs several times: `own = SkipNamespace(); own(\"x\")`.")
      .def(py::init<>())
      .def("__call__", &SkipNamespace::operator(), py::arg("name"));

  struct Skips {
    std::unique_ptr<SkipScope> in_force;
  };
  py::class_<Skips>(
      module, "SkipScope",
      "Lets layers stash and pop on this thread outside of a pipeline: a context manager.")
      .def(py::init<>())
      .def(
          "__enter__",
          [](Skips& skips) -> Skips& {
            skips.in_force = std::make_unique<SkipScope>();
            return skips;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](Skips& skips, const py::args&) { skips.in_force.reset(); });
}

// The draws of a layer, from `with` to the end of its block.
struct Draws {
  std::uint64_t seed;
  std::int64_t micro_batch, layer;
  std::unique_ptr<DrawsOfLayer> in_force;
};

void bind_draws(py::module_& module) {
  module.def("seed_of_pipeline", &seed_of_pipeline,
             "The number that forward() and step() draw from the CPU's generator, drawn.");
  py::class_<Draws>(
      module, "DrawsOfLayer",
      "A context manager: operators of this thread draw as that layer does for that micro-batch.")
      .def(
          py::init([](std::uint64_t seed, std::int64_t micro_batch, std::int64_t layer) {
            return std::make_unique<Draws>(Draws{seed, micro_batch, layer, nullptr});
          }),
          py::arg("seed"), py::arg("micro_batch"), py::arg("layer"),
          "`seed` is what seed_of_pipeline() returned. `layer` counts from 0 over the whole model.")
      .def(
          "__enter__",
          [](Draws& draws) -> Draws& {
            draws.in_force =
                std::make_unique<DrawsOfLayer>(draws.seed, draws.micro_batch, draws.layer);
            return draws;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](Draws& draws, const py::args&) { draws.in_force.reset(); });
}

void bind_balance(py::module_& module) {
  module.def("balance_by_time", [](const py::list& holder, const at::Tensor& micro_batch,
                                   std::int64_t stages, const py::object& bytes_per_stage,
                                   std::int64_t repetitions) {
    const detail::Layers layers = layers_to_measure(holder);
    const Bytes bytes = bytes_per_stage.is_none()
                            ? Bytes(std::int64_t{1} << 52)
                            : bytes_of(bytes_per_stage, "balance_by_time(): bytes_per_stage");
    const py::gil_scoped_release no_gil;
    return detail::balance_by_time(layers, micro_batch, stages, bytes, {repetitions});
  });
  module.def("balance_by_bytes", [](const py::list& holder, const at::Tensor& micro_batch,
                                    std::int64_t stages, std::int64_t repetitions) {
    const detail::Layers layers = layers_to_measure(holder);
    const py::gil_scoped_release no_gil;
    return detail::balance_by_bytes(layers, micro_batch, stages, {repetitions});
  });
}

}  // namespace

void bind_pipeline(py::module_& module) {
  bind_pipeline_schedule(module);
  py::class_<NormStandIn>(module, "NormStandIn")
      .def(py::init<>())
      .def("follow", [](NormStandIn& stand_in, const at::Tensor& mean, const at::Tensor& variance,
                        const std::optional<at::Tensor>& count, std::optional<double> momentum) {
        stand_in.norm->running_mean = mean;
        stand_in.norm->running_var = variance;
        stand_in.norm->num_batches_tracked = count.value_or(at::Tensor());
        stand_in.norm->options.momentum(momentum);
      });
  py::class_<OwnedPipeline>(module, "OwnedPipeline")
      .def(py::init<const py::list&, const py::dict&>())
      .def("forward", &forward)
      .def("step", &step)
      .def("plan", &plan)
      .def("train", [](OwnedPipeline& it,
                       bool on) { it.run("train", [&](Pipeline& own) { own.train(on); }); })
      .def("is_training", [](const OwnedPipeline& it) { return it.get().is_training(); })
      .def("stages", [](const OwnedPipeline& it) { return it.get().stages(); })
      .def("checkpoint_stop",
           [](const OwnedPipeline& it, std::int64_t micro_batches) {
             return it.get().checkpoint_stop(micro_batches);
           })
      .def("schedule", [](const OwnedPipeline& it,
                          std::int64_t micro_batches) { return it.get().schedule(micro_batches); })
      .def("timeline", [](OwnedPipeline& it) {
        return it.run("timeline", [](Pipeline& own) { return own.timeline(); });
      });
  module.def("is_checkpointing", &is_checkpointing,
             "Whether the innermost region around the caller runs for the first time.");
  module.def("is_recomputing", &is_recomputing,
             "Whether any region around the caller is being run again.");
  bind_balance(module);
  bind_skips(module);
  bind_draws(module);
}

}  // namespace reprise::python
