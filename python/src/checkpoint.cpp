// Regions for Python: the fast way into run_region(), and what tells when torch must do it itself.
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <reprise/checkpoint.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <array>

#include "bindings.h"
#include "checkpoint_call.h"

namespace reprise::python {
namespace {

// Bits of the flags that Python gives.
enum Flag : long {
  kReentrant = 1,
  kPreserveRandom = 2,
  kEarlyStop = 4,
  kCheckNothing = 8,
  kCheckValues = 16,
};

CheckpointOptions make_options(long flags) {
  CheckpointOptions options;
  options.reentrant = (flags & kReentrant) != 0;
  options.preserve_rng_state = (flags & kPreserveRandom) != 0;
  if (!options.reentrant) {
    options.early_stop = (flags & kEarlyStop) != 0 ? EarlyStop::kAlways : EarlyStop::kNever;
  }
  options.determinism_check = (flags & kCheckNothing) != 0  ? DeterminismCheck::kNone
                              : (flags & kCheckValues) != 0 ? DeterminismCheck::kValues
                                                            : DeterminismCheck::kDefault;
  return options;
}

const CheckpointOptions& options_of(long flags) {
  static const auto* const all = [] {
    auto* options = new std::array<CheckpointOptions, 32>;
    for (std::size_t i = 0; i < options->size(); ++i) (*options)[i] = make_options(i);
    return options;
  }();
  return all->at(static_cast<std::size_t>(flags));
}

bool is_wrapped(PyObject* object) {
  if (THPVariable_CheckExact(object) || !THPVariable_Check(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return tensor.key_set().has(c10::DispatchKey::Python) ||
         at::functionalization::impl::isFunctionalTensor(tensor);
}

// Something is in force that Python must look at: a tracer, a mode, hooks that are forbidden, an
// argument that is a subclass of Tensor.
bool is_special(PyObject* arguments, PyObject* keywords) {
  using c10::DispatchKey;
  if (at::impl::PythonTorchFunctionTLS::stack_len() > 0) return true;
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return true;
  const auto& included = c10::impl::tls_local_dispatch_key_set().included_;
  if (included.has(DispatchKey::FuncTorchDynamicLayerFrontMode) ||
      included.has(DispatchKey::Functionalize) || torch::jit::tracer::isTracing() ||
      !at::SavedTensorDefaultHooks::is_enabled()) {
    return true;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    if (is_wrapped(PyTuple_GET_ITEM(arguments, i))) return true;
  }
  if (keywords == nullptr) return false;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(keywords, &position, &key, &value) != 0) {
    if (is_wrapped(value)) return true;
  }
  return false;
}

PyObject* keywords_of(PyObject* object) {
  return object == Py_None || PyDict_GET_SIZE(object) == 0 ? nullptr : object;
}

PyObject* run(const CheckpointOptions& options, const PythonCall::Functions& functions,
              PyObject* arguments, PyObject* keywords) {
  if (!c10::GradMode::is_enabled()) return PyObject_Call(functions.first, arguments, keywords);
  const auto call = std::make_shared<PythonCall>(functions, arguments, keywords);
  detail::run_region(options, call);
  return call->take_result();
}

// region(function, arguments, keywords, flags): `special` where is_special().
PyObject* region(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 4, "region() takes 4 arguments");
  PyObject* const keywords = keywords_of(given[2]);
  if (is_special(given[1], keywords)) return Py_NewRef(checkpoint_parts().special);
  return run(options_of(PyLong_AsLong(given[3])), {given[0], given[0], nullptr}, given[1],
             keywords);
  END_HANDLE_TH_ERRORS
}

// region_with(first, again, explain, arguments, keywords, flags): runs it in any case.
PyObject* region_with(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 6, "region_with() takes 6 arguments");
  return run(options_of(PyLong_AsLong(given[5])),
             {given[0], given[1], given[2] == Py_None ? nullptr : given[2]}, given[3],
             keywords_of(given[4]));
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"region", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&region)), METH_FASTCALL,
     nullptr},
    {"region_with", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&region_with)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void bind_checkpoint(py::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
  module.def("set_checkpoint_parts", [](const py::object& stop, const py::object& refuse) {
    checkpoint_parts().stop = stop.inc_ref().ptr();
    checkpoint_parts().refuse = refuse.inc_ref().ptr();
  });
  checkpoint_parts().special = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  module.attr("special") = py::handle(checkpoint_parts().special);
}

}  // namespace reprise::python
