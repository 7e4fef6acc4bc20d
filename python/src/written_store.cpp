#include "written_store.h"

#include <reprise/error.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "checkpoint_call.h"
#include "store.h"

namespace reprise::python {
namespace {

py::object as_object(Owned owned) { return py::reinterpret_steal<py::object>(owned.release()); }

// An exception of the function passes through autograd's engine as it is.
template <class... Arguments>
py::object call(const py::object& function, const Arguments&... arguments) {
  const Owned result(PyObject_CallFunctionObjArgs(function.ptr(), arguments..., nullptr));
  if (!result) throw_python_error();
  return py::reinterpret_borrow<py::object>(result.get());
}

bool truth_of(const py::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw_python_error();
  return truth != 0;
}

}  // namespace

// Holds the object that put() has returned for one value.
class WrittenStore::Kept final : public ParkedTensor {
 public:
  Kept(std::shared_ptr<WrittenStore> store, py::object object, py::object value, Bytes bytes)
      : store_(std::move(store)),
        object_(object.release().ptr()),
        value_(value.release().ptr()),
        bytes_(bytes) {}
  ~Kept() override {
    if (is_over()) return;
    const py::gil_scoped_acquire locked;
    const py::error_scope in_flight;
    // A destructor raises nothing; Python's hook for such errors tells it.
    try {
      if (const py::object drop = store_->method("drop")) call(drop, value_.get());
    } catch (python_error& error) {
      error.restore();
      PyErr_WriteUnraisable(object_.get());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("drop()");
    }
  }

  at::Tensor load() override {
    const py::gil_scoped_acquire locked;
    const py::object loaded = call(store_->method("get"), value_.get());
    if (!THPVariable_Check(loaded.ptr())) {
      throw UsageError(store_->name() + ": get() returned an object of type " +
                       Py_TYPE(loaded.ptr())->tp_name +
                       "; it must return a tensor like the one that put() was given");
    }
    store_->count_read(bytes_);
    return THPVariable_Unpack(loaded.ptr()).detach();
  }
  bool prefetch() override {
    const py::gil_scoped_acquire locked;
    const py::object prefetch = store_->method("prefetch");
    return prefetch && truth_of(call(prefetch, value_.get()));
  }
  Bytes bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<WrittenStore> store_;
  const Owned object_, value_;
  const Bytes bytes_;
};

py::object WrittenStore::object() const {
  const PythonStore* const owner = owner_;
  if (owner == nullptr) throw StoreError(name_ + ": the store is gone; keep it while it is used");
  return py::cast(owner, py::return_value_policy::reference);
}

py::object WrittenStore::method(const char* name) const {
  const py::object own = object();
  const py::object found = py::getattr(py::type::of(own), name, py::none());
  if (found.is_none() || found.is(py::getattr(py::type::of<PythonStore>(), name, py::none()))) {
    return {};
  }
  return own.attr(name);
}

std::shared_ptr<Store> WrittenStore::kept_alive() {
  const py::gil_scoped_acquire locked;
  py::object own = object();
  if (name_.empty()) name_ = py::type::of(own).attr("__name__").cast<std::string>();
  for (const char* const needed : {"put", "get"}) {
    if (method(needed)) continue;
    throw UsageError("Store: the class " + name_ + " has no " + needed +
                     "(); a store of your own derives from reprise.Store and writes put(flat) and "
                     "get(kept)");
  }
  const auto holder = std::make_shared<std::pair<std::shared_ptr<Store>, Owned>>(
      shared_from_this(), Owned(own.release().ptr()));
  return {holder, this};
}

bool WrittenStore::exact() const {
  const py::gil_scoped_acquire locked;
  const py::object own = object();
  const py::object found = py::type::of(own).attr("exact");
  if (found.is(py::type::of<PythonStore>().attr("exact"))) return false;
  return truth_of(own.attr("exact"));
}

bool WrittenStore::takes(c10::Device device) const {
  const py::gil_scoped_acquire locked;
  const py::object takes = method("takes");
  if (!takes) return device.is_cpu();
  return truth_of(call(takes, py::cast(device).ptr()));
}

void WrittenStore::flush() {
  const py::gil_scoped_acquire locked;
  if (const py::object flush = method("flush")) call(flush);
}

std::unique_ptr<ParkedTensor> WrittenStore::park_flat(const at::Tensor& flat) {
  const py::gil_scoped_acquire locked;
  const py::object given = as_object(Owned(THPVariable_Wrap(flat)));
  py::object value = call(method("put"), given.ptr());
  const Bytes bytes(static_cast<std::int64_t>(flat.nbytes()));
  count_written(bytes);
  return std::make_unique<Kept>(std::static_pointer_cast<WrittenStore>(shared_from_this()),
                                object(), std::move(value), bytes);
}

}  // namespace reprise::python
