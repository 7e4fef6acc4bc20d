// A scope of C++ as a context manager of Python. `with` opens it and the end of its block closes it, on
// one thread.
#pragma once

#include <pybind11/pybind11.h>
#include <reprise/error.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "bindings.h"

namespace reprise::python {

template <class Scope>
class Context {
 public:
  using Open = std::function<std::unique_ptr<Scope>()>;

  Context(std::string name, Open open) : name_(std::move(name)), open_(std::move(open)) {}
  // A block that never ended, of a thread or a generator that is gone, leaves its scope open: scopes end
  // on their thread and in order.
  ~Context() { (void)scope_.release(); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void enter() {
    if (scope_) throw UsageError(name_ + ": this scope is open already; make one for each block");
    scope_ = open_();
    thread_ = std::this_thread::get_id();
  }
  void exit() {
    if (!scope_) return;
    if (thread_ != std::this_thread::get_id()) {
      throw UsageError(name_ + ": a scope ends on the thread that entered it");
    }
    scope_.reset();
  }

  // Binds the class; what makes one is bound by the caller.
  static void bind(py::module_& module, const char* name, const char* doc) {
    py::class_<Context>(module, name, doc)
        .def(
            "__enter__",
            [](Context& context) -> Context& {
              context.enter();
              return context;
            },
            py::return_value_policy::reference)
        .def("__exit__", [](Context& context, const py::args&) { context.exit(); });
  }

 private:
  const std::string name_;
  const Open open_;
  std::unique_ptr<Scope> scope_;
  std::thread::id thread_;
};

}  // namespace reprise::python
