// The files of the binding share this header: it has one function for each concept, called by
// module.cpp, and quantities of Python.
#pragma once

#include <c10/core/Device.h>
#include <pybind11/pybind11.h>
#include <reprise/bytes.h>
#include <reprise/error.h>

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

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

// An error tells by this what an option of type T takes.
template <class T>
constexpr std::string_view taken_by() {
  if constexpr (std::same_as<T, bool>) return "True or False";
  if constexpr (std::same_as<T, std::string>) return "a str";
  if constexpr (std::floating_point<T>) return "a number";
  if constexpr (std::unsigned_integral<T>) return "an int from 0 that the library's integers hold";
  return "an int that the library's integers hold";
}

// Throws UsageError for a value that is no T, with `name` for the option and what it takes.
template <class T>
T option_as(const py::handle& value, std::string_view name,
            std::string_view takes = taken_by<T>()) {
  py::detail::make_caster<T> caster;
  if (caster.load(value, /*convert=*/true)) return py::detail::cast_op<T>(std::move(caster));
  throw UsageError(std::string(name) + " is " + py::repr(value).cast<std::string>() + "; give " +
                   std::string(takes));
}

// An int is a number of bytes, a str is read as parse_bytes() does. Throws UsageError for another
// type, with `name` for what the bytes are of.
Bytes bytes_of(const py::handle& value, std::string_view name);
// The machine's accelerator, where it has one, else the CPU.
c10::Device default_device();
// Of a torch.device, its name, or None, which is the default.
c10::Device device_of(const py::handle& value);
// Sets the option of that name, if it is `store`, `weights` or `observer`; whether it is.
bool set_extension(BudgetOptions& options, const std::string& name, const py::handle& value);

}  // namespace reprise::python
