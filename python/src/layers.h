// A list of Python modules and functions as the chain of layers that C++ runs.
#pragma once

#include <pybind11/pybind11.h>
#include <reprise/detail/layers.h>

#include <functional>

#include "bindings.h"

namespace reprise::python {

// Calls `function` of Python.
std::function<void()> putting_back(const py::object& function);

// Each layer is the tuple of reprise._layers.described(). `call` names what runs them in errors.
detail::Layers layers_of(const py::list& described, const char* call);

}  // namespace reprise::python
