// Errors of the library as Python exceptions. Errors that leave an operator of torch are Python's, too.
#include <pybind11/pybind11.h>
#include <reprise/error.h>
#include <torch/csrc/Exceptions.h>

#include <exception>

#include "bindings.h"
#include "libtorch/base/leaving_errors.h"

namespace reprise::python {
namespace {

// Never freed: an error may be raised while the interpreter ends.
struct Types {
  PyObject *error, *usage, *store, *determinism, *budget, *plan;
};
Types types{};

PyObject* make_type(py::module_& module, const char* name, const char* doc,
                    const py::tuple& bases) {
  const std::string full = std::string("reprise.") + name;
  PyObject* const type = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) throw py::error_already_set();
  module.attr(name) = py::handle(type);
  return type;
}

// Sets Python's error for the exception in hand, if it is one of ours.
bool set_error() {
  const auto set = [](PyObject* type, const Error& error) {
    PyErr_SetString(type, error.what());
    return true;
  };
  try {
    throw;
  } catch (const UsageError& error) {
    return set(types.usage, error);
  } catch (const StoreError& error) {
    return set(types.store, error);
  } catch (const DeterminismError& error) {
    return set(types.determinism, error);
  } catch (const BudgetError& error) {
    return set(types.budget, error);
  } catch (const PlanError& error) {
    return set(types.plan, error);
  } catch (const Error& error) {
    return set(types.error, error);
  } catch (...) {
    return false;
  }
}

bool is_budget_error() {
  if (Py_IsInitialized() == 0) return false;
  const auto is_it = [](PyObject* type) {
    const py::gil_scoped_acquire gil;
    return PyErr_GivenExceptionMatches(type, types.budget) != 0;
  };
  try {
    throw;
  } catch (const py::error_already_set& error) {
    return is_it(error.type().ptr());
  } catch (const python_error& error) {
    return is_it(error.type);
  } catch (...) {
    return false;
  }
}

// The frame of the function that this thread runs. A thread needs no lock to look at its own, as
// long as the interpreter runs.
const void* position() {
  if (Py_IsInitialized() == 0) return nullptr;
  const PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return nullptr;
#if PY_VERSION_HEX >= 0x030d0000
  return thread->current_frame;
#elif PY_VERSION_HEX >= 0x030b0000
  return thread->cframe->current_frame;
#else
  return thread->frame;
#endif
}

// An operator, or a function of autograd's graph, may run without the interpreter's lock, on any thread.
void leave_call() {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  if (set_error()) throw py::error_already_set();
}

void translate(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error&) {
    set_error();
  } catch (const py::builtin_exception&) {
    throw;
  } catch (const std::exception&) {
    torch::translate_exception_to_python(exception);
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  const py::object runtime = py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
  const py::object value = py::reinterpret_borrow<py::object>(PyExc_ValueError);
  const py::object memory = py::module_::import("torch").attr("OutOfMemoryError");
  types.error = make_type(
      module, "Error",
      "Base of all errors of reprise. Each text says what was wrong, where, and what to do.",
      py::make_tuple(runtime));
  const py::handle error(types.error);
  types.usage =
      make_type(module, "UsageError",
                "An option, a size or a combination of both that a call cannot work with.",
                py::make_tuple(error, value));
  types.store = make_type(module, "StoreError", "A store could not keep a value or return it.",
                          py::make_tuple(error));
  types.determinism =
      make_type(module, "DeterminismError", "A recomputation did not reproduce what forward saved.",
                py::make_tuple(error));
  types.budget = make_type(
      module, "BudgetError",
      "The bytes do not suffice. Also a torch.OutOfMemoryError, which scripts catch that shrink their "
      "batch.",
      py::make_tuple(error, memory));
  types.plan = make_type(module, "PlanError", "A schedule or plan cannot be followed.",
                         py::make_tuple(error));
  py::register_local_exception_translator(&translate);
  libtorch::set_host_language(
      {.translate_error = &leave_call, .is_budget_error = &is_budget_error, .position = &position});
}

}  // namespace reprise::python
