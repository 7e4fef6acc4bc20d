// The files of the binding share this header: it has one function for each concept, called by
// module.cpp, and quantities of Python.
#pragma once

#include <c10/core/Device.h>
#include <pybind11/pybind11.h>
#include <reprise/bytes.h>

#include <string>
#include <string_view>

namespace reprise {
struct BudgetOptions;
}

namespace reprise::python {

namespace py = pybind11;

void bind_errors(py::module_& module);
void bind_memory(py::module_& module);
void bind_budget(py::module_& module);
void bind_checkpoint(py::module_& module);
void bind_access(py::module_& module);
void bind_checkpoint_sequential(py::module_& module);
void bind_compiled_plan(py::module_& module);
void bind_pipeline(py::module_& module);
void bind_pipeline_schedule(py::module_& module);
void bind_step_trace(py::module_& module);
void bind_chain(py::module_& module);
void bind_estimate(py::module_& module);
void bind_stores(py::module_& module);
void bind_extensions(py::module_& module);
void bind_pgac(py::module_& module);

// Bytes that Python reads past operators stay in place until the last open step has ended.
void step_begins();
void step_ends();

// An int is a number of bytes, a str is read as parse_bytes() does. Throws UsageError for another
// type, with `name` for what the bytes are of.
Bytes bytes_of(const py::handle& value, std::string_view name);
// A torch.device or its name.
c10::Device device_of(const py::handle& value);
// Sets the option of that name, if it is `store`, `weights` or `observer`; whether it is.
bool set_extension(BudgetOptions& options, const std::string& name, const py::handle& value);

}  // namespace reprise::python
