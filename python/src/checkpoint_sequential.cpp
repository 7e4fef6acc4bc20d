// Chains of Python functions: checkpoint_sequential() within a number of bytes or by a schedule, and
// profiles.
#include <reprise/sequential.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "checkpoint_call.h"
#include "checkpoint_options.h"
#include "layers.h"
#include "store.h"

namespace reprise::python {
namespace {

// Stands for a function of Python for as long as that lives: plans are remembered by it.
struct LayerToken {
  std::shared_ptr<const void> identity = std::make_shared<char>();
};

at::Tensor call_layer(PyObject* function, const std::string& name, const char* call,
                      const at::Tensor& input) {
  const py::gil_scoped_acquire locked;
  const Owned arguments(PyTuple_New(1));
  PyTuple_SET_ITEM(arguments.get(), 0, THPVariable_Wrap(input));
  const Owned result = call_in_region(function, arguments.get(), nullptr);
  if (THPVariable_Check(result.get())) return THPVariable_Unpack(result.get());
  throw UsageError(
      std::string(call) + "(): layer " + name + " returned " + Py_TYPE(result.get())->tp_name +
      "; each layer here takes one tensor and returns one. checkpoint_sequential() with "
      "a number of segments takes others");
}

// What Python knows of one layer, in the order of the tuple that it gives.
void add_layer(detail::Layers& layers, const py::tuple& layer, const char* call) {
  const auto function = std::make_shared<Owned>(Owned::borrowed(py::object(layer[0]).ptr()));
  const auto name = layer[1].cast<std::string>();
  layers.functions.emplace_back([function, name, call](const at::Tensor& input) {
    return call_layer(function->get(), name, call, input);
  });
  layers.names.push_back(name);
  layers.modules.push_back(layer[2].cast<const LayerToken&>().identity);
  for (const py::handle tensor : layer[3]) {
    layers.parameters.push_back(THPVariable_Unpack(tensor.ptr()));
  }
  for (const py::handle tensor : layer[4]) {
    layers.buffers.push_back(THPVariable_Unpack(tensor.ptr()));
  }
  for (const py::handle trains : layer[5]) layers.trains.push_back(trains.cast<bool>());
  if (layer[6].is_none()) return;
  const auto state = std::make_shared<Owned>(Owned::borrowed(py::object(layer[6]).ptr()));
  layers.states.emplace_back([state] {
    const py::gil_scoped_acquire locked;
    return putting_back(py::handle(state->get())());
  });
}

at::Tensor within(const py::list& given, const py::object& budget, const at::Tensor& input,
                  long flags) {
  const detail::Layers layers = layers_of(given, "checkpoint_sequential");
  const Bytes bytes = bytes_of(budget, "segments");
  // Layers take the lock themselves: profiling excludes other threads meanwhile.
  const py::gil_scoped_release unlocked;
  return detail::checkpoint_within(layers, bytes, input, checkpoint_options(flags));
}

at::Tensor by_schedule(const py::list& given, const Schedule& schedule, const at::Tensor& input,
                       long flags, const PythonStore* store) {
  const detail::Layers layers = layers_of(given, "checkpoint_sequential");
  const py::gil_scoped_release unlocked;
  return checkpoint_sequential(layers.functions, schedule, input, checkpoint_options(flags),
                               store == nullptr ? nullptr : store->get());
}

Chain profile(const py::list& given, const at::Tensor& sample, std::int64_t repetitions) {
  const detail::Layers layers = layers_of(given, "profile_chain");
  const py::gil_scoped_release unlocked;
  return detail::profile(layers, sample, {.repetitions = repetitions});
}

}  // namespace

std::function<void()> putting_back(const py::object& function) {
  return [function = std::make_shared<Owned>(Owned::borrowed(function.ptr()))] {
    const py::gil_scoped_acquire locked;
    py::handle(function->get())();
  };
}

detail::Layers layers_of(const py::list& described, const char* call) {
  detail::Layers layers;
  for (const py::handle layer : described) {
    add_layer(layers, py::reinterpret_borrow<py::tuple>(layer), call);
  }
  return layers;
}

void bind_checkpoint_sequential(py::module_& module) {
  py::class_<LayerToken>(module, "LayerToken").def(py::init<>());
  module.def("checkpoint_within", &within);
  module.def("checkpoint_by_schedule", &by_schedule);
  module.def("profile_chain", &profile);
}

}  // namespace reprise::python
