// A store whose put() and get() are written in Python.
//
// Ownership: the object of Python owns the store, and everybody in C++ who uses the store or a value
// in it owns the object. No cycle passes through C++.
//
// The interpreter's lock is taken for each call of Python, on whatever thread. So nobody may call
// this store under a lock for which a thread of Python may wait.
#pragma once

#include <pybind11/pybind11.h>
#include <reprise/store.h>

#include <atomic>
#include <memory>
#include <string>

#include "bindings.h"

namespace reprise::python {

class PythonStore;

class WrittenStore final : public Store {
 public:
  explicit WrittenStore(const PythonStore& owner) : owner_(&owner) {}

  bool exact() const override;
  bool takes(c10::Device device) const override;
  std::string name() const override { return name_; }
  void flush() override;
  // The object of Python is gone. Only values without elements are left, which ask for nothing.
  void forget() { owner_ = nullptr; }
  // This store, kept alive with its object of Python. Throws UsageError for a class without put() or
  // get().
  std::shared_ptr<Store> kept_alive();

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override;

 private:
  class Kept;

  py::object object() const;
  // The method that the class writes; null if it has none.
  py::object method(const char* name) const;

  std::atomic<const PythonStore*> owner_;
  std::string name_;  // once it is kept alive: that of the class
};

}  // namespace reprise::python
