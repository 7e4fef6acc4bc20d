#include "checkpoint_call.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <exception>
#include <string>
#include <utility>

#include "region/foreign.h"

namespace reprise::python {
namespace {

// Python's exception has been taken, or means nothing any more: what C++ code sees of an early stop.
struct FunctionLeft final : std::exception {
  const char* what() const noexcept override { return "reprise: the function was left early"; }
};

// Becomes an exception of the class `stop` where LibTorch returns to Python.
struct StopFunction final : torch::PyTorchError {
  PyObject* python_type() override { return checkpoint_parts().stop; }
};

const char* name_of(region::Mismatch::Kind kind) {
  using Kind = region::Mismatch::Kind;
  switch (kind) {
    case Kind::kFewerSaved:
      return "fewer saved";
    case Kind::kMoreSaved:
      return "more saved";
    case Kind::kOtherMetadata:
      return "other metadata";
    case Kind::kOtherValues:
      return "other values";
    case Kind::kReadTwice:
      return "read twice";
    case Kind::kReadTwiceInGroup:
      return "read twice in group";
    case Kind::kNotAccumulating:
      return "not accumulating";
    case Kind::kSecondDerivative:
      return "second derivative";
    case Kind::kNoGradient:
      return "no gradient";
    case Kind::kChangedArgument:
      return "changed argument";
  }
  return "";
}

// Around a function that leave_afterwards() may end.
class Leaving {
 public:
  Leaving() : outer_(std::exchange(innermost, this)) {}
  ~Leaving() { innermost = outer_; }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

  // Has the interpreter raise in this thread.
  bool raise() {
    return raised_ =
               PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), checkpoint_parts().stop) == 1;
  }
  bool raised() const { return raised_; }

  static thread_local Leaving* innermost;

 private:
  Leaving* outer_;
  bool raised_ = false;
};
thread_local Leaving* Leaving::innermost = nullptr;

// Frees it although frames that it has passed may hold it (contextlib's do in CPython 3.10): it holds
// these frames by its traceback, and no longer does.
void drop_exception() {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  if (value != nullptr && PyExceptionInstance_Check(value) != 0) {
    PyException_SetTraceback(value, Py_None);
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

// An exception of leave_afterwards() that may have come too late is raised here, and not in whatever
// runs next. To take it back by PyThreadState_SetAsyncExc() would leave the interpreter looking for it
// at each call: slower, and for ever under a profiler (CPython 3.11). An error that is set stays set,
// unless something else, such as a signal, has raised meanwhile.
void take_late_exception() {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const Owned done(PyObject_CallNoArgs(checkpoint_parts().nothing));
  if (!done && PyErr_ExceptionMatches(checkpoint_parts().stop) != 0) {
    drop_exception();
  } else if (!done) {
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), nullptr);  // a signal came first
  }
  if (PyErr_Occurred() == nullptr) {
    PyErr_Restore(type, value, traceback);
    return;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

// Calls, and throws what it raises.
Owned call(PyObject* function, PyObject* arguments, PyObject* keywords) {
  Owned result(PyObject_Call(function, arguments, keywords));
  if (!result) throw_python_error();
  return result;
}

// Gives null if the region leaves the function early.
Owned call_unless_left(PyObject* function, PyObject* arguments, PyObject* keywords) {
  const Leaving leaving;
  Owned result(PyObject_Call(function, arguments, keywords));
  if (!result && PyErr_ExceptionMatches(checkpoint_parts().stop) != 0) {
    drop_exception();
    return result;
  }
  if (leaving.raised()) take_late_exception();
  if (PyErr_Occurred() != nullptr) throw_python_error();
  return leaving.raised() ? Owned() : std::move(result);
}

}  // namespace

bool is_over() { return Py_IsInitialized() == 0; }

void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

Owned call_in_region(PyObject* function, PyObject* arguments, PyObject* keywords) {
  Owned result = call_unless_left(function, arguments, keywords);
  if (!result) throw FunctionLeft();
  return result;
}

CheckpointParts& checkpoint_parts() {
  static CheckpointParts parts;
  return parts;
}

Owned::~Owned() {
  if (object_ == nullptr || is_over()) return;
  const py::gil_scoped_acquire locked;
  Py_DECREF(object_);
}

PythonCall::PythonCall(const Functions& functions, PyObject* arguments, PyObject* keywords)
    : first_(Owned::borrowed(functions.first)),
      again_(Owned::borrowed(functions.again)),
      explain_(Owned::borrowed(functions.explain)),
      keywords_(Owned::borrowed(keywords)),
      first_arguments_(arguments) {
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const argument = PyTuple_GET_ITEM(arguments, i);
    is_tensor_.push_back(THPVariable_Check(argument));
    if (is_tensor_.back()) tensors_.push_back(THPVariable_Unpack(argument));
  }
  if (tensors_.size() == is_tensor_.size()) return;
  others_ = Owned(PyTuple_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const kept = is_tensor_[i] ? Py_None : PyTuple_GET_ITEM(arguments, i);
    Py_INCREF(kept);
    PyTuple_SET_ITEM(others_.get(), i, kept);
  }
}

PythonCall::~PythonCall() {
  if (is_over()) return;
  // Once for all members.
  const py::gil_scoped_acquire locked;
  for (Owned* owned : {&first_, &again_, &explain_, &keywords_, &others_, &result_}) {
    Py_XDECREF(owned->release());
  }
}

void PythonCall::run_first() {
  PyObject* const arguments = std::exchange(first_arguments_, nullptr);
  result_ = call(first_.get(), arguments, keywords_.get());
  first_ = {};
}

Owned PythonCall::arguments_for(detail::Tensors& tensors) const {
  Owned arguments(PyTuple_New(static_cast<Py_ssize_t>(is_tensor_.size())));
  std::size_t next = 0;
  for (std::size_t i = 0; i < is_tensor_.size(); ++i) {
    const auto position = static_cast<Py_ssize_t>(i);
    PyObject* argument = nullptr;
    if (is_tensor_[i]) {
      argument = THPVariable_Wrap(std::move(tensors[next++]));
    } else {
      argument = PyTuple_GET_ITEM(others_.get(), position);
      Py_INCREF(argument);
    }
    PyTuple_SET_ITEM(arguments.get(), position, argument);
  }
  return arguments;
}

void PythonCall::run_again(detail::Tensors& tensors, detail::Tensors* results) {
  const py::gil_scoped_acquire locked;
  const Owned arguments = arguments_for(tensors);
  const auto run = results == nullptr ? &call_unless_left : &call_in_region;
  const Owned result = run(again_.get(), arguments.get(), keywords_.get());
  if (results == nullptr) return;
  if (THPVariable_Check(result.get())) {
    results->push_back(THPVariable_Unpack(result.get()));
  } else if (PyTuple_Check(result.get())) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result.get()); ++i) {
      PyObject* const item = PyTuple_GET_ITEM(result.get(), i);
      if (THPVariable_Check(item)) results->push_back(THPVariable_Unpack(item));
    }
  }
}

void PythonCall::visit_arguments(const std::function<void(at::Tensor&)>& f) {
  for (at::Tensor& tensor : tensors_) f(tensor);
}

// Only of reentrant regions. Tensors are replaced, not changed: somebody may have them otherwise.
void PythonCall::visit_result(const std::function<void(at::Tensor&)>& f) {
  const auto visited = [&](PyObject* object) {
    at::Tensor tensor = THPVariable_Unpack(object);
    f(tensor);
    return Owned(THPVariable_Wrap(tensor));
  };
  if (THPVariable_Check(result_.get())) {
    result_ = visited(result_.get());
  } else if (PyTuple_Check(result_.get())) {
    const Py_ssize_t count = PyTuple_GET_SIZE(result_.get());
    Owned tuple(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const item = PyTuple_GET_ITEM(result_.get(), i);
      Owned kept = THPVariable_Check(item) ? visited(item) : Owned::borrowed(item);
      PyTuple_SET_ITEM(tuple.get(), i, kept.release());
    }
    result_ = std::move(tuple);
  }
}

void PythonCall::drop_result() { result_ = {}; }

namespace {

void leave() { throw StopFunction(); }

// The interpreter raises the exception at the function's next call or jump. Dispatch modes see
// operators: for them the operator is left before it runs.
bool leave_afterwards() {
  if (Leaving::innermost == nullptr || c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    return false;
  }
  const py::gil_scoped_acquire locked;
  return Leaving::innermost->raise();
}

std::shared_ptr<void> unlock() {
  if (is_over() || PyGILState_Check() == 0) return nullptr;
  return std::make_shared<py::gil_scoped_release>();
}

void warn_of_no_gradient() {
  const py::gil_scoped_acquire locked;
  if (PyErr_WarnEx(PyExc_UserWarning,
                   "None of the inputs have requires_grad=True. Gradients will be None", 1) != 0) {
    throw_python_error();
  }
}

py::dict described(c10::IntArrayRef sizes, at::ScalarType dtype, c10::Device device) {
  py::dict metadata;
  metadata["shape"] = py::module_::import("torch").attr("Size")(sizes.vec());
  metadata["dtype"] =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
  metadata["device"] = py::reinterpret_steal<py::object>(THPDevice_New(device));
  return metadata;
}

// Raises as the Python part does.
void report(const detail::RegionCall& region, const region::Mismatch& mismatch) {
  const py::gil_scoped_acquire locked;
  py::list differences;
  for (const auto& each : mismatch.differences) {
    differences.append(py::make_tuple(
        each.index, described(each.sizes_before, each.dtype_before, each.device_before),
        described(each.sizes_now, each.dtype_now, each.device_now)));
  }
  const auto* const python = dynamic_cast<const PythonCall*>(&region);
  PyObject* const explain = python == nullptr ? nullptr : python->explain();
  const py::tuple arguments = py::make_tuple(
      name_of(mismatch.kind), mismatch.text, mismatch.saved_before, mismatch.saved_now, differences,
      explain == nullptr ? py::none() : py::reinterpret_borrow<py::object>(explain));
  call(checkpoint_parts().refuse, arguments.ptr(), nullptr);
}

}  // namespace

void set_foreign() {
  region::foreign() = {&leave, &leave_afterwards, &unlock, &report, &warn_of_no_gradient};
}

}  // namespace reprise::python
