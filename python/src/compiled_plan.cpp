// The planner for steps whose forward and backward are compiled apart, from Python. The package
// `reprise.compiled` is the only caller, so that the names are not public.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "bindings.h"
#include "plan/step/split_plan.h"

namespace reprise::python {

void bind_compiled_plan(py::module_& module) {
  using plan::SplitPlan;
  using plan::SplitStep;
  using Index = SplitStep::Index;

  py::class_<SplitStep>(module, "_SplitStep",
                        "The operators of a step, forward's first, and what they read and make.")
      .def(py::init<>())
      .def(
          "add_value",
          [](SplitStep& step, std::int64_t bytes) {
            step.bytes.push_back(bytes);
            return step.bytes.size() - 1;
          },
          py::arg("bytes"), "The number of a new value.")
      .def(
          "add_operator",
          [](SplitStep& step, std::int64_t nanoseconds, std::vector<Index> reads,
             std::vector<Index> makes, std::int64_t beside) {
            step.operators.push_back({nanoseconds, std::move(reads), std::move(makes)});
            step.beside.push_back(beside);
          },
          py::arg("nanoseconds"), py::arg("reads"), py::arg("makes"), py::arg("beside"))
      .def("begin_backward",
           [](SplitStep& step) { step.half = static_cast<Index>(step.operators.size()); })
      .def(
          "keep", [](SplitStep& step, Index value) { step.kept.push_back(value); },
          py::arg("value"), "The value must be there when the step ends.")
      .def(
          "plan",
          [](const SplitStep& step, std::int64_t budget, std::int64_t moves, bool repeats) {
            const py::gil_scoped_release no_gil;
            return plan_split(step, {.budget = budget, .moves = moves, .repeats = repeats});
          },
          py::arg("budget"), py::kw_only(), py::arg("moves"), py::arg("repeats") = false)
      .def(
          "smallest",
          [](const SplitStep& step, std::int64_t moves, bool repeats) {
            const py::gil_scoped_release no_gil;
            return smallest_split(step, {.moves = moves, .repeats = repeats});
          },
          py::kw_only(), py::arg("moves"), py::arg("repeats") = false);

  py::class_<SplitPlan>(module, "_SplitPlan")
      .def_readonly("fits", &SplitPlan::fits)
      .def_readonly("handed_over", &SplitPlan::handed_over)
      .def_readonly("runs", &SplitPlan::runs)
      .def_readonly("peak", &SplitPlan::peak)
      .def_readonly("peak_operator", &SplitPlan::peak_operator)
      .def_readonly("recompute_nanoseconds", &SplitPlan::recompute_nanoseconds)
      .def_readonly("bound_nanoseconds", &SplitPlan::bound_nanoseconds);
}

}  // namespace reprise::python
