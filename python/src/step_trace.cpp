// Recorded steps from Python, and the planners that know their future.
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <reprise/planners.h>
#include <reprise/step_trace.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "record.h"

namespace reprise::python {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

const char* name_of(SimulatedStep::Outcome outcome) {
  switch (outcome) {
    case SimulatedStep::Outcome::kFits:
      return "fits";
    case SimulatedStep::Outcome::kOutOfMemory:
      return "out of memory";
    case SimulatedStep::Outcome::kTooSlow:
      return "too slow";
    case SimulatedStep::Outcome::kOutOfTime:
      return "out of time";
  }
  return "";
}

SimulatedStep simulate(const StepTrace& trace, const py::object& budget,
                       const std::string& heuristic, double slowdown_limit, double time_limit,
                       bool by_index, std::uint64_t seed) {
  const SimulateOptions options{.budget = bytes_of(budget, "simulate(): the budget"),
                                .heuristic = parse_heuristic(heuristic),
                                .slowdown_limit = slowdown_limit,
                                .time_limit = Seconds(time_limit),
                                .by_index = by_index,
                                .seed = seed};
  const py::gil_scoped_release no_gil;
  return trace.simulate(options);
}

void bind_simulation(py::module_& module) {
  Record<SimulatedStep>(
      module, "SimulatedStep",
      "What a step of a trace does in fewer bytes: bytes (int) and times (float, seconds).\n\n"
      "A step that does not fit is no error: `outcome` tells why.")
      .figure(
          "outcome", [](const SimulatedStep& it) { return std::string(name_of(it.outcome)); },
          "\"fits\"; \"out of memory\", where an operator did not fit although everything droppable "
          "was dropped; \"too slow\" or \"out of time\", beyond the limits given.")
      .figure("slowdown", &SimulatedStep::slowdown,
              "(base + recompute) / base; up to its end if the step did not fit.")
      .figure("recompute", &SimulatedStep::recompute, "Seconds of operators that ran again.")
      .figure("peak", &SimulatedStep::peak, "The most bytes at once.")
      .figure("evictions", &SimulatedStep::evictions, "Values dropped for lack of bytes.")
      .figure("recomputations", &SimulatedStep::recomputations, "Operators that ran again.")
      .figure("events", &SimulatedStep::events, "Events in the trace.")
      .kept(&SimulatedStep::outcome)
      .pickled();

  Record<StepTrace> trace(
      module, "StepTrace",
      "A recorded training step, on which budgets can be tried without its tensors.\n\n"
      "    trace = reprise.StepTrace.read(\"step.jsonl.gz\")\n"
      "    trace.simulate(\"4GB\", heuristic=\"h_up\").slowdown\n\n"
      "TraceRecorder records one, and an Estimate has one. Traces are constant; any thread may use\n"
      "one.");
  trace.figure("operators", &StepTrace::operators, "The number of operators that the step ran.")
      .figure("base", &StepTrace::base, "Seconds of these operators.")
      .figure("plain_peak", &StepTrace::plain_peak,
              "Bytes, if no value is dropped before the program releases it.")
      .figure(
          "floor", &StepTrace::floor,
          "No budget can be below these bytes: constants, and one operator's inputs and results.")
      .figure("constants", &StepTrace::constants,
              "Bytes of parameters and inputs, which are never dropped.")
      .pickled_as_text();
  trace.type()
      .def_static("read", &StepTrace::read, py::arg("file"), NoGil(),
                  "Reads a log of events or a document, plain or compressed by gzip.\n\n"
                  "Raises UsageError \"FILE:LINE: reason\".")
      .def_static("parse", &StepTrace::parse, py::arg("text"), py::arg("origin") = "step", NoGil(),
                  "The step of a str or of bytes; `origin` names them in errors.")
      .def("json", &StepTrace::json, NoGil(), "The step as a document that parse() reads.")
      .def(
          "simulate", &simulate, py::arg("budget"), py::kw_only(), py::arg("heuristic") = "h_eq",
          py::arg("slowdown_limit") = 10.0, py::arg("time_limit") = 0.0,
          py::arg("by_index") = false, py::arg("seed") = 0,
          "Follows the step in `budget` bytes (an int, or a str such as \"4GB\"), parameters included.\n\n"
          "heuristic: which value is dropped; \"h_dtr\", \"h_eq\", \"h_up\", \"h_local\", \"lru\", "
          "\"largest\" or \"random\".\n"
          "slowdown_limit: end when the step takes this many times as long.\n"
          "time_limit: seconds of the simulation itself; 0: none.\n"
          "by_index: look for the lowest score as a running step does, and not at every value.\n"
          "seed: of random draws.\n\n"
          "Raises UsageError for options out of range.");
}

using Runs = std::vector<std::tuple<std::int64_t, std::int64_t, bool>>;

Runs runs_of(const StepPlan& plan) {
  Runs runs;
  runs.reserve(plan.runs.size());
  for (const auto& run : plan.runs) runs.emplace_back(run.op, run.before, run.loads);
  return runs;
}

using StepPlanner = StepPlan (*)(const StepTrace&, const StepPlanOptions&);

void bind_planner(py::module_& module, const char* name, StepPlanner planner, const char* doc) {
  module.def(
      name,
      [planner, name](const StepTrace& trace, const py::object& budget, double time_limit,
                      double store_rate, std::int64_t moves, std::uint64_t seed) {
        const StepPlanOptions options{
            .budget = bytes_of(budget, std::string(name) + "(): the budget"),
            .time_limit = Seconds(time_limit),
            .store = {store_rate},
            .moves = moves,
            .seed = seed};
        const py::gil_scoped_release no_gil;
        return planner(trace, options);
      },
      py::arg("trace"), py::arg("budget"), py::kw_only(), py::arg("time_limit") = 10.0,
      py::arg("store_rate") = 0.0, py::arg("moves") = 0, py::arg("seed") = 0, doc);
}

}  // namespace

void bind_step_trace(py::module_& module) {
  bind_simulation(module);
  Record<StepPlan>(module, "StepPlan", "Which operators of a recorded step run again, and when.")
      .figure("fits", &StepPlan::fits,
              "Whether a plan was found. If not, only `bound` has a meaning.")
      .figure("slowdown", &StepPlan::slowdown, "(base + recompute + transfer) / base.")
      .figure("bound", &StepPlan::bound, "Proven: no plan has a smaller slowdown.")
      .figure("recompute", &StepPlan::recompute, "Seconds of operators that run again.")
      .figure("transfer", &StepPlan::transfer, "Seconds to the store and back.")
      .figure("peak", &StepPlan::peak, "The most bytes at once.")
      .detail(
          "runs", &runs_of,
          "A list of (op, before, loads) in order: operator `op` runs again right before operator "
          "`before` runs for the first time.\n\n"
          "Both count from 0, in the order of the trace and without its constants; `before` is the "
          "number of operators at the end of the step. With `loads` the results are loaded from the "
          "store instead, where they went after the first run.")
      .kept(&runs_of,
            [](StepPlan& plan, const Runs& runs) {
              for (const auto& [op, before, loads] : runs) plan.runs.push_back({op, before, loads});
            })
      .pickled();
  bind_planner(
      module, "hindsight", &planners::hindsight,
      "The best plan that is found for a recorded step, and a proven bound.\n\n"
      "budget: bytes for everything, parameters included; an int or a str such as \"4GB\".\n"
      "time_limit: seconds of the search.\n"
      "store_rate: bytes a second to a store and back; 0: there is none.\n"
      "moves: the number of moves of the search in place of the time limit. The same number gives\n"
      "    the same plan every time.\n"
      "seed: of the search's random draws.\n\n"
      "Raises UsageError for options out of range. Other threads run meanwhile.");
  bind_planner(
      module, "ilp", &planners::ilp,
      "The optimum by an integer program (Checkmate), for up to about 60 operators.\n\n"
      "Options are those of hindsight(), without `moves`. Raises UsageError for more than\n"
      "200 operators, and Error if the build has no HiGHS (has_ilp()).");
  module.def("has_ilp", &planners::has_ilp, "Whether this build has the planner ilp().");
}

}  // namespace reprise::python
