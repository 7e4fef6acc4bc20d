#include "pipeline_layers.h"

#include <reprise/error.h>
#include <torch/csrc/autograd/python_variable.h>

#include <functional>
#include <utility>

#include "layers.h"

namespace reprise::python {
namespace {

using Tensors = std::vector<at::Tensor>;

std::string type_of(const py::handle& value) { return Py_TYPE(value.ptr())->tp_name; }

bool is_tensor_or_none(const py::handle& value) {
  return value.is_none() || THPVariable_Check(value.ptr());
}

at::Tensor tensor_of(const py::handle& value) {
  return value.is_none() ? at::Tensor() : THPVariable_Unpack(value.ptr());
}

Tensors list_of(const py::object& tensors) {
  Tensors list;
  for (const py::handle tensor : tensors) list.push_back(tensor_of(tensor));
  return list;
}

// The place of a layer among those of a pipeline that may be gone.
class LayerReference {
 public:
  LayerReference(const py::list& holder, std::size_t index)
      : holder_(std::make_shared<Owned>(PyWeakref_NewRef(holder.ptr(), nullptr))), index_(index) {
    if (!*holder_) throw py::error_already_set();
  }

  // Under the lock.
  py::object get() const {
    const py::object holder = py::handle(holder_->get())();  // a weak reference is called
    if (holder.is_none()) {
      throw UsageError(
          "Pipeline: the pipeline of this layer is gone; keep it as long as it is used");
    }
    return py::reinterpret_borrow<py::object>(PyList_GET_ITEM(holder.ptr(), index_));
  }

 private:
  std::shared_ptr<Owned> holder_;
  std::size_t index_;
};

bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

// Gives a worker's thread a state of the interpreter that lasts. Without it, an exception that a hook
// raises in a backward call of this thread is lost as soon as the hook has given the lock back.
class LastingThreadState {
 public:
  // Threads of Python, and the caller's, have a state that somebody else counts.
  LastingThreadState() : is_own_(PyGILState_GetThisThreadState()->gilstate_counter == 1) {
    if (is_own_) PyGILState_Ensure();
  }
  ~LastingThreadState() {
    if (!is_own_ || is_ending()) return;
    PyGILState_Ensure();
    PyGILState_Release(PyGILState_LOCKED);
    PyGILState_Release(PyGILState_UNLOCKED);
  }
  LastingThreadState(const LastingThreadState&) = delete;
  LastingThreadState& operator=(const LastingThreadState&) = delete;

 private:
  const bool is_own_;
};

// Under the lock, which the calling thread gives back by itself.
void keep_thread_state() { thread_local const LastingThreadState lasting; }

Owned call_with(const py::handle& function, std::vector<Owned> values) {
  keep_thread_state();
  const Owned arguments(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyTuple_SET_ITEM(arguments.get(), static_cast<Py_ssize_t>(i), values[i].release());
  }
  return call_in_region(function.ptr(), arguments.get(), nullptr);
}

Owned call_with(const py::handle& function, const Tensors& tensors) {
  std::vector<Owned> values;
  values.push_back(value_of(tensors));
  return call_with(function, std::move(values));
}

// An exception of the method passes through the pipeline as it is.
py::object method(const LayerReference& layer, const char* name) { return layer.get().attr(name); }

}  // namespace

Owned value_of(const Tensors& tensors) {
  if (tensors.size() == 1) return Owned(THPVariable_Wrap(tensors.front()));
  Owned tuple(PyTuple_New(static_cast<Py_ssize_t>(tensors.size())));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(tensors[i]));
  }
  return tuple;
}

Tensors tensors_of(const py::handle& value, const std::string& what) {
  if (THPVariable_Check(value.ptr())) return {THPVariable_Unpack(value.ptr())};
  std::string reason = "an object of type " + type_of(value);
  if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
    const auto values = py::reinterpret_borrow<py::sequence>(value);
    Tensors tensors;
    for (const py::handle each : values) {
      if (!is_tensor_or_none(each)) break;
      tensors.push_back(tensor_of(each));
    }
    // A tuple of one tensor would reach the next layer as that tensor.
    if (tensors.size() == values.size() && values.size() > 1) return tensors;
    reason = "a " + type_of(value) + " (";
    for (const py::handle each : values)
      reason += (reason.back() == '(' ? "" : ", ") + type_of(each);
    reason += ")";
  }
  throw UsageError("Pipeline: " + what + " " + reason +
                   "; a value is a tensor, or a tuple of two tensors or more (None for none)");
}

std::vector<PipelineLayer> pipeline_layers(const py::list& holder) {
  std::vector<PipelineLayer> layers;
  for (std::size_t i = 0; i < holder.size(); ++i) {
    const LayerReference own(holder, i);
    const py::object given = own.get();
    PipelineLayer& layer = layers.emplace_back();
    layer.name = given.attr("name").cast<std::string>();
    const std::string returned = "layer " + std::to_string(i) + " (" + layer.name + ") returned";
    layer.forward = [own, returned](const Tensors& input) {
      const py::gil_scoped_acquire locked;
      const Owned result = call_with(own.get(), input);
      return tensors_of(result.get(), returned);
    };
    layer.parameters = list_of(given.attr("parameters"));
    layer.buffers = list_of(given.attr("buffers"));
    layer.state = [own] {
      const py::gil_scoped_acquire locked;
      return putting_back(method(own, "state")());
    };
    layer.stashes = given.attr("stashes").cast<std::vector<std::string>>();
    layer.pops = given.attr("pops").cast<std::vector<std::string>>();
    layer.move = [own](c10::Device device) {
      const py::gil_scoped_acquire locked;
      method(own, "move")(device);
    };
    layer.train = [own](bool on) {
      const py::gil_scoped_acquire locked;
      method(own, "train")(on);
    };
    layer.is_training = [own] {
      const py::gil_scoped_acquire locked;
      return method(own, "is_training")().cast<bool>();
    };
    const auto norms = py::list(given.attr("norms"));
    if (norms.empty()) continue;
    const auto all = std::make_shared<torch::nn::Module>();
    for (const py::handle norm : norms) {
      all->register_module(std::to_string(all->children().size()),
                           norm.cast<const NormStandIn&>().norm);
    }
    layer.module = all;
  }
  return layers;
}

detail::Layers layers_to_measure(const py::list& holder) {
  detail::Layers layers;
  for (PipelineLayer& layer : pipeline_layers(holder)) {
    const std::string what =
        "layer " + std::to_string(layers.names.size()) + " (" + layer.name + ")";
    layers.functions.emplace_back([forward = layer.forward, what](const at::Tensor& input) {
      Tensors made = forward({input});
      if (made.size() == 1) return std::move(made.front());
      throw UsageError("balance: " + what + " returned " + std::to_string(made.size()) +
                       " tensors; layers that are measured take and return one");
    });
    layers.names.push_back(layer.name);
    layers.parameters.insert(layers.parameters.end(), layer.parameters.begin(),
                             layer.parameters.end());
    layers.buffers.insert(layers.buffers.end(), layer.buffers.begin(), layer.buffers.end());
    layers.states.push_back(layer.state);
  }
  return layers;
}

std::function<void(const PipelineEvent&)> observer_of(const py::object& holder) {
  const auto reference = std::make_shared<Owned>(PyWeakref_NewRef(holder.ptr(), nullptr));
  if (!*reference) throw py::error_already_set();
  return [reference](const PipelineEvent& event) {
    const py::gil_scoped_acquire locked;
    const py::object alive = py::handle(reference->get())();
    if (alive.is_none()) return;
    std::vector<Owned> values;
    values.emplace_back(py::cast(event).release().ptr());
    call_with(alive.attr("on_event"), std::move(values));
  };
}

std::function<at::Tensor(const Tensors&, const Tensors&)> loss_of(const py::object& loss) {
  const auto function = std::make_shared<Owned>(Owned::borrowed(loss.ptr()));
  return [function](const Tensors& output, const Tensors& target) {
    const py::gil_scoped_acquire locked;
    std::vector<Owned> values;
    values.push_back(value_of(output));
    values.push_back(value_of(target));
    const Owned result = call_with(function->get(), std::move(values));
    if (THPVariable_Check(result.get())) return THPVariable_Unpack(result.get());
    throw UsageError("Pipeline: the loss returned an object of type " + type_of(result.get()) +
                     "; it must return a tensor with one element");
  };
}

}  // namespace reprise::python
