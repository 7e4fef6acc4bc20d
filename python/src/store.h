// A store as Python holds it: given back without the interpreter's lock, for its threads end then.
#pragma once

#include <pybind11/pybind11.h>
#include <reprise/store.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings.h"
#include "written_store.h"

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
  // Makes a store that a class of Python writes.
  PythonStore() : written_(std::make_shared<WrittenStore>(*this)) {}
  explicit PythonStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  PythonStore(PythonStore&& other) noexcept = default;  // not of one that Python has written
  PythonStore(const PythonStore&) = delete;
  PythonStore& operator=(const PythonStore&) = delete;
  virtual ~PythonStore() {
    if (written_ != nullptr) written_->forget();
    without_gil([this] { store_.reset(); });
  }
  // Throws UsageError for a class of Python that is not whole.
  std::shared_ptr<Store> get() const {
    return written_ != nullptr ? written_->kept_alive() : store_;
  }
  bool is_written() const { return written_ != nullptr; }
  // Without keeping a written one's object of Python alive.
  Store& itself() const { return written_ != nullptr ? *written_ : *store_; }

 private:
  std::shared_ptr<Store> store_;
  std::shared_ptr<WrittenStore> written_;
};

}  // namespace reprise::python
