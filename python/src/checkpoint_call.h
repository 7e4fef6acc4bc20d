// A region's function that is a Python callable.
//
// Forward calls it on the arguments as they were given. A recomputation calls it on a tuple into
// which the saved tensors are put. Tensors among the positional arguments belong to the region;
// keyword arguments and what lies in containers are kept as they are, as torch does.
//
// The interpreter's lock (GIL): the constructor and run_first() are called by a thread that holds it.
// Everything else may be called by a thread of autograd that does not, and takes it for as long as
// it touches Python objects. Where a thread may wait for another one's recomputation, which needs the
// lock, it gives the lock back meanwhile (set_foreign()).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <reprise/checkpoint.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings.h"

namespace reprise::python {

// Classes and functions of the package's Python part, set once by it. Borrowed for good.
struct CheckpointParts {
  // Raised inside the function at an early stop. No subclass of RuntimeError: functions catch those.
  PyObject* stop = nullptr;
  // Called with what a recomputation got wrong; raises.
  PyObject* refuse = nullptr;
  // The classes of fake and functional tensors: a tuple.
  PyObject* traced = nullptr;
  // region() returns this object where it has done nothing.
  PyObject* special = nullptr;
  // A function of Python that does nothing.
  PyObject* nothing = nullptr;
};
CheckpointParts& checkpoint_parts();

// The interpreter is shutting down: its objects go with it, and its lock is not given any more.
bool is_over();

// A reference that is given back under the lock, by whatever thread.
class Owned {
 public:
  Owned() = default;
  explicit Owned(PyObject* stolen) : object_(stolen) {}
  static Owned borrowed(PyObject* object) {
    Py_XINCREF(object);
    return Owned(object);
  }
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned();

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// The call of a Python function, with what torch.utils.checkpoint does around it: for all regions of
// the process.
void set_foreign();

// Throws Python's exception that is set, in a form that keeps it through autograd's engine.
[[noreturn]] void throw_python_error();

// Calls a function, or a part of one, that a region runs again. Throws what it raises, or something else
// if the region leaves it early. Under the interpreter's lock.
Owned call_in_region(PyObject* function, PyObject* arguments, PyObject* keywords);

class PythonCall final : public detail::RegionCall {
 public:
  struct Functions {
    PyObject* first;  // called in forward
    PyObject* again;  // called in a recomputation
    // Called with a CheckpointError that is about to be raised; raises another one. May be null.
    PyObject* explain;
  };
  // Borrows everything. `arguments` is a tuple that outlives run_first(); `keywords` may be null.
  PythonCall(const Functions& functions, PyObject* arguments, PyObject* keywords);
  ~PythonCall() override;

  void run_first() override;
  void run_again(detail::Tensors& tensors, detail::Tensors* results) override;
  void visit_arguments(const std::function<void(at::Tensor&)>& f) override;
  void visit_result(const std::function<void(at::Tensor&)>& f) override;
  void drop_result() override;
  // Called with a CheckpointError that is about to be raised; null if there is none.
  PyObject* explain() const { return explain_.get(); }

  // Once, after run_first(). A new reference.
  PyObject* take_result() { return result_.release(); }

 private:
  Owned arguments_for(detail::Tensors& tensors) const;

  Owned first_, again_, explain_, keywords_;
  // Null after run_first().
  PyObject* first_arguments_;
  // The arguments, None in place of tensors; null where all are tensors.
  Owned others_;
  detail::Tensors tensors_;
  c10::SmallVector<bool, 8> is_tensor_;
  Owned result_;
};

}  // namespace reprise::python
