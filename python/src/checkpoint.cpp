// Regions for Python: the fast way into run_region(), and what tells when torch must do it itself.
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/eval.h>
#include <reprise/checkpoint.h>
#include <reprise/selective.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "checkpoint_call.h"
#include "checkpoint_options.h"
#include "checkpoint_policy.h"
#include "libtorch/operators/ordered_effects.h"
#include "region/open_region.h"

namespace reprise::python {
namespace {

CheckpointOptions make_options(long flags) {
  CheckpointOptions options;
  options.reentrant = (flags & kReentrant) != 0;
  options.preserve_rng_state = (flags & kPreserveRandom) != 0;
  if (!options.reentrant) {
    options.early_stop = (flags & kEarlyStop) != 0 ? EarlyStop::kAlways : EarlyStop::kNever;
    // The region need only know that there is one: Python enters it.
    if ((flags & kOwnContexts) != 0) {
      options.context = [] { return RegionContexts{{}, [] { return ContextScope(); }}; };
    }
  }
  options.determinism_check = (flags & kCheckNothing) != 0  ? DeterminismCheck::kNone
                              : (flags & kCheckValues) != 0 ? DeterminismCheck::kValues
                                                            : DeterminismCheck::kDefault;
  return options;
}

// A tensor of a subclass that sees operators itself, or one that a tracer wraps.
bool is_wrapped(PyObject* object) {
  if (THPVariable_CheckExact(object) || !THPVariable_Check(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return tensor.key_set().has(c10::DispatchKey::Python) ||
         at::functionalization::impl::isFunctionalTensor(tensor);
}

template <class F>
bool any_argument(PyObject* arguments, PyObject* keywords, const F& f) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    if (f(PyTuple_GET_ITEM(arguments, i))) return true;
  }
  if (keywords == nullptr) return false;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(keywords, &position, &key, &value) != 0) {
    if (f(value)) return true;
  }
  return false;
}

bool is_included(c10::DispatchKey key) {
  return c10::impl::tls_local_dispatch_key_set().included_.has(key);
}

// Something is in force that Python must look at: a tracer, a mode, hooks that are forbidden, an
// argument of a subclass of Tensor.
bool is_special(PyObject* arguments, PyObject* keywords) {
  return at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         is_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         is_included(c10::DispatchKey::Functionalize) || torch::jit::tracer::isTracing() ||
         !at::SavedTensorDefaultHooks::is_enabled() ||
         any_argument(arguments, keywords, &is_wrapped);
}

// The reason why torch's own function must run; null if there is none.
const char* why_torch(PyObject* arguments, PyObject* keywords) {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  if (TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE)) return "a FakeTensorMode";
  if (TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY)) return "a tracer of torch.fx";
  if (TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FUNCTIONAL) ||
      is_included(c10::DispatchKey::Functionalize)) {
    return "functionalization";
  }
  if (is_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode))
    return "a torch.func transform";
  if (torch::jit::tracer::isTracing()) return "torch.jit.trace";
  if (!at::SavedTensorDefaultHooks::is_enabled()) return "a scope that forbids saved-tensor hooks";
  const auto is_traced = [](PyObject* object) {
    return is_wrapped(object) &&
           (PyObject_IsInstance(object, checkpoint_parts().traced) == 1 ||
            at::functionalization::impl::isFunctionalTensor(THPVariable_Unpack(object)));
  };
  return any_argument(arguments, keywords, is_traced) ? "a fake or functional tensor" : nullptr;
}

PyObject* keywords_of(PyObject* object) {
  return object == Py_None || PyDict_GET_SIZE(object) == 0 ? nullptr : object;
}

PyObject* unless_none(PyObject* object) { return object == Py_None ? nullptr : object; }

// The options for these flags, with the policy and the name in force if there are any.
class Options {
 public:
  Options(long flags, PyObject* selective) : options_(&checkpoint_options(flags)) {
    std::string name = current_path();
    if (selective == nullptr && name.empty()) return;
    own_ = *options_;
    own_->name = std::move(name);
    if (selective == nullptr) return;
    const auto& with = py::cast<const Selective&>(py::handle(selective));
    own_->context = reprise::selective(
        with.policy, {.respect_saved_tensors_hooks = (flags & kRespectHooks) != 0});
  }
  const CheckpointOptions& get() const { return own_ ? *own_ : *options_; }

 private:
  const CheckpointOptions* options_;
  std::optional<CheckpointOptions> own_;
};

PyObject* run(PyObject* const* given, Py_ssize_t count, bool anyway) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 5, "region() takes 5 arguments");
  PyObject* const keywords = keywords_of(given[2]);
  if (!anyway && is_special(given[1], keywords)) return Py_NewRef(checkpoint_parts().special);
  if (!c10::GradMode::is_enabled()) return PyObject_Call(given[0], given[1], keywords);
  const Options options(PyLong_AsLong(given[3]), unless_none(given[4]));
  const auto call = std::make_shared<PythonCall>(PythonCall::Functions{given[0], given[0], nullptr},
                                                 given[1], keywords);
  detail::run_region(options.get(), call);
  return call->take_result();
  END_HANDLE_TH_ERRORS
}

// (function, arguments, keywords, flags, selective): `special` where something is in force that Python
// must look at.
PyObject* region(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return run(given, count, /*anyway=*/false);
}
PyObject* region_anyway(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return run(given, count, /*anyway=*/true);
}

PyMethodDef methods[] = {
    {"region", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&region)), METH_FASTCALL,
     nullptr},
    {"region_anyway", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&region_anyway)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

// A region whose function Python calls: for the generator that hooks of modules drive.
class Open {
 public:
  Open(const py::object& again, const py::object& explain, const py::tuple& arguments,
       const py::object& keywords, long flags, const py::object& selective) {
    const Options options(flags, unless_none(selective.ptr()));
    open_.emplace(options.get(),
                  std::make_shared<PythonCall>(
                      PythonCall::Functions{again.ptr(), again.ptr(), unless_none(explain.ptr())},
                      arguments.ptr(), keywords_of(keywords.ptr())));
  }
  void end() { open_->end(); }
  void close() { open_.reset(); }

 private:
  std::optional<region::OpenRegion> open_;
};

// The group of a GraphExecGroup object of Python, and its scope while it is entered.
class Group {
 public:
  void enter() { scope_.emplace(group_); }
  void exit() { scope_.reset(); }

 private:
  GraphExecGroup group_;
  std::optional<GraphExecGroup::Scope> scope_;
};

}  // namespace

const CheckpointOptions& checkpoint_options(long flags) {
  static const auto* const all = [] {
    auto* options = new std::array<CheckpointOptions, 64>;
    for (std::size_t i = 0; i < options->size(); ++i) (*options)[i] = make_options(i);
    return options;
  }();
  return all->at(static_cast<std::size_t>(flags) % all->size());
}

void bind_checkpoint(py::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
  module.def("set_checkpoint_parts",
             [](const py::object& stop, const py::object& refuse, const py::object& traced) {
               CheckpointParts& parts = checkpoint_parts();
               parts.stop = stop.inc_ref().ptr();
               parts.refuse = refuse.inc_ref().ptr();
               parts.traced = traced.inc_ref().ptr();
               set_foreign();
             });
  checkpoint_parts().special = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  module.attr("special") = py::handle(checkpoint_parts().special);
  checkpoint_parts().nothing = py::eval("lambda: None").release().ptr();
  module.def("why_torch", [](const py::tuple& arguments, const py::dict& keywords) {
    return why_torch(arguments.ptr(), keywords.ptr());
  });
  module.def("has_python_hooks",
             [] { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); });
  // Unlike the public function it passes by operators that are unknown or cannot be declared.
  module.def("declare_ordered_effects", [](const std::string& op, bool has_effects) {
    libtorch::declare_ordered_effects(op, has_effects);
  });
  py::class_<Selective>(module, "Selective")
      .def_static("of_list",
                  [](const py::list& overloads, bool allow) {
                    return Selective{policy_of_list(overloads, !allow)};
                  })
      .def_static("of_function", [](const py::object& function, bool allow,
                                    const py::object& context, const py::object& policies) {
        return Selective{policy_of_function(function, !allow, context, policies)};
      });
  py::class_<Open>(module, "OpenRegion")
      .def(py::init<const py::object&, const py::object&, const py::tuple&, const py::object&, long,
                    const py::object&>())
      .def("end", &Open::end)
      .def("close", &Open::close);
  py::class_<Group>(module, "GraphExecGroup")
      .def(py::init<>())
      .def("enter", &Group::enter)
      .def("exit", &Group::exit);
  bind_checkpoint_sequential(module);
}

}  // namespace reprise::python
