// A store as Python holds it: given back without the interpreter's lock, for its threads end then.
#pragma once

#include <pybind11/pybind11.h>
#include <reprise/store.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings.h"

namespace reprise::python {

// Runs f without the interpreter's lock, whether this thread holds it or not.
template <class F>
void without_gil(const F& f) {
  std::optional<py::gil_scoped_release> no_gil;
  if (PyGILState_Check() != 0) no_gil.emplace();
  f();
}

class PythonStore {
 public:
  explicit PythonStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  PythonStore(PythonStore&&) noexcept = default;
  PythonStore(const PythonStore&) = delete;
  PythonStore& operator=(const PythonStore&) = delete;
  virtual ~PythonStore() {
    without_gil([this] { store_.reset(); });
  }
  const std::shared_ptr<Store>& get() const { return store_; }

 private:
  std::shared_ptr<Store> store_;
};

}  // namespace reprise::python
