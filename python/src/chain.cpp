// Chains, schedules and the planners for them. They are plain data: any thread may plan, without the
// interpreter's lock.
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <reprise/chain.h>
#include <reprise/error.h>
#include <reprise/planners.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "record.h"

namespace reprise::python {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;
using Steps = std::vector<std::pair<std::string, std::int32_t>>;

// In the order of ScheduleOp::Kind, as in the JSON of schedules.
constexpr std::array kOperations = {"keep", "checkpoint", "drop", "backward", "offload", "load"};

Steps steps_of(const Schedule& schedule) {
  Steps steps;
  for (const ScheduleOp& op : schedule.ops) {
    steps.emplace_back(kOperations.at(static_cast<std::size_t>(op.kind)), op.stage);
  }
  return steps;
}

Schedule schedule_of(const Steps& steps, std::vector<std::int64_t> layers) {
  Schedule schedule{.ops = {}, .layers = std::move(layers)};
  for (const auto& [operation, stage] : steps) {
    std::size_t kind = 0;
    while (kind < kOperations.size() && operation != kOperations.at(kind)) ++kind;
    if (kind == kOperations.size()) {
      throw UsageError("Schedule: the operation is '" + operation +
                       "'; it is keep, checkpoint, drop, backward, offload or load");
    }
    schedule.ops.push_back({static_cast<ScheduleOp::Kind>(kind), stage});
  }
  return schedule;
}

Bytes budget_of(const py::object& budget) {
  return budget.is_none() ? kUnlimited : bytes_of(budget, "the planner's budget");
}

// Binds read(), parse(), json() and equality, which chains and schedules have.
template <class T>
void bind_document(Record<T>& record, const char* origin) {
  record.type()
      .def_static("read", &T::read, py::arg("file"), NoGil(),
                  "Reads JSON. Raises UsageError \"FILE:LINE: field: reason\".")
      .def_static("parse", &T::parse, py::arg("json"), py::arg("origin") = origin, NoGil(),
                  "The same from a text; `origin` names it in errors.")
      .def("json", &T::json, NoGil(), "As JSON, which parse() reads (docs of chain.h).")
      .def(
          "__eq__", [](const T& one, const T& other) { return one == other; }, py::is_operator())
      .attr("__hash__") = py::none();
}

void bind_stage(py::module_& module) {
  Record<ChainStage> stage(
      module, "ChainStage",
      "The costs of one stage of a chain: times (float, seconds) and bytes (int).\n\n"
      "Chain.check() raises UsageError, with the stage, for impossible ones.");
  stage.figure("name", &ChainStage::name, "Its name.")
      .figure("forward", &ChainStage::forward, "Seconds.")
      .figure("backward", &ChainStage::backward, "Seconds.")
      .figure("output", &ChainStage::output, "Bytes of its output.")
      .figure("saved", &ChainStage::saved,
              "Bytes kept for backward besides the input, when the stage runs kept.")
      .figure("saves_output", &ChainStage::saves_output, "The output is in `saved`.")
      .figure("needs_input", &ChainStage::needs_input, "Its backward reads its input.")
      .figure("forward_temporaries", &ChainStage::forward_temporaries,
              "Bytes at once, besides the output, when it does not run kept.")
      .figure("keep_temporaries", &ChainStage::keep_temporaries,
              "Bytes at once, besides the output and `saved`, when it runs kept.")
      .figure(
          "backward_temporaries", &ChainStage::backward_temporaries,
          "Bytes at once, besides all gradients and `saved`; negative if `saved` is freed first.")
      .figure("output_gradient", &ChainStage::output_gradient,
              "Bytes of the gradient that its backward takes.")
      .figure("parameter_gradients", &ChainStage::parameter_gradients,
              "Bytes of the gradients that its backward makes and leaves.")
      .figure("layers", &ChainStage::layers, "How many layers of the model it stands for.")
      .pickled();

  Record<Chain> chain(
      module, "Chain",
      "A list of stages that run one after another, each with its seconds and bytes.\n\n"
      "profile_chain() measures one, and read() reads one from a file.");
  chain.figure("stages", &Chain::stages, "A list of ChainStage.")
      .figure("input_gradient", &Chain::input_gradient,
              "Bytes that the first stage's backward makes; 0 if nobody needs them.")
      .figure("forward", &Chain::forward, "Seconds of all stages.")
      .figure("backward", &Chain::backward, "Seconds of all stages.")
      .pickled();
  bind_document(chain, "chain");
  chain.type().def("check", &Chain::check,
                   "Raises UsageError, with the stage, for impossible figures.");
}

void bind_schedule(py::module_& module) {
  Record<Schedule> schedule(module, "Schedule",
                            "The operations of one step over a chain, in order.");
  schedule
      .figure("steps", &steps_of,
              "A list of (operation, stage): keep, checkpoint, drop, backward, offload or load.")
      .figure("layers", &Schedule::layers,
              "How many layers each stage stands for; empty: one each.")
      .pickled_as_text();
  schedule.type().def(py::init(&schedule_of), py::arg("steps"),
                      py::arg("layers") = std::vector<std::int64_t>());
  bind_document(schedule, "schedule");

  Record<ScheduleCost>(
      module, "ScheduleCost",
      "What a schedule costs, by the chain's figures: bytes (int) and times (float, seconds).\n\n"
      "evaluate() returns it, and raises PlanError for a schedule that is not the chain's.")
      .figure("peak", &ScheduleCost::peak, "The most bytes at once, besides the chain's input.")
      .figure("time", &ScheduleCost::time, "Seconds of the whole step, transfers included.")
      .figure("recompute", &ScheduleCost::recompute,
              "Seconds beyond each stage's forward and backward once.")
      .figure("transfer", &ScheduleCost::transfer, "Seconds that the step waits for transfers.")
      .figure("forwards", &ScheduleCost::forwards, "Runs of stages.")
      .pickled();

  const auto follow = [&](const char* name, auto function, const char* doc) {
    module.def(
        name,
        [function](const Chain& chain, const Schedule& schedule, double store_rate) {
          return function(chain, schedule, TransferRate{store_rate});
        },
        py::arg("chain"), py::arg("schedule"), py::kw_only(), py::arg("store_rate") = 0.0, NoGil(),
        doc);
  };
  follow(
      "evaluate", &evaluate,
      "The exact cost of a schedule; `store_rate` is in bytes a second, 0 for no store.\n\n"
      "Raises PlanError for a schedule that is not valid, with the operation and what is missing.");
  follow("picture", &picture,
         "The schedule as text: a line a stage, a column an operation.\n\n"
         "K runs kept, c keeps its input, d drops it, B is backward, o offloads, l loads; = is in\n"
         "memory kept, - an output alone, . in the store.");
  follow("picture_svg", &picture_svg, "The same as SVG, with the bytes in memory above it.");
}

void bind_planners(py::module_& module) {
  const auto bind = [&](const char* name, Schedule (*planner)(const Chain&, Bytes),
                        const char* doc) {
    module.def(
        name,
        [planner](const Chain& chain, const py::object& budget) {
          const Bytes bytes = budget_of(budget);
          const py::gil_scoped_release no_gil;
          return planner(chain, bytes);
        },
        py::arg("chain"), py::arg("budget") = py::none(), doc);
  };
  bind("keep_all", &planners::keep_all, "Keeps every stage: the plain step.");
  bind("every_stage", &planners::every_stage,
       "Makes every stage but the last a region of its own.");
  bind("sqrt", &planners::sqrt,
       "uniform() with sqrt(stages) segments (Chen et al., arXiv:1604.06174).");
  bind("revolve", &planners::revolve,
       "The binomial schedule, for stages that are all alike (Griewank and Walther, 2000).");
  module.def(
      "uniform",
      [](const Chain& chain, std::int64_t segments, const py::object& budget) {
        return planners::uniform(chain, segments, budget_of(budget));
      },
      py::arg("chain"), py::arg("segments"), py::arg("budget") = py::none(),
      "Cuts the chain into that many runs of equally many stages; all but the last are regions.");
  module.def(
      "rotor",
      [](const Chain& chain, const py::object& budget, std::int64_t slots, double store_rate) {
        const Bytes bytes = budget_of(budget);
        const py::gil_scoped_release no_gil;
        return planners::rotor(chain, bytes, {.slots = slots, .store = {store_rate}});
      },
      py::arg("chain"), py::arg("budget") = py::none(), py::kw_only(), py::arg("slots") = 0,
      py::arg("store_rate") = 0.0,
      "The fastest schedule that keeps what it stores until backward has used it (Beaumont et al.,\n"
      "arXiv:1911.13214).\n\n"
      "slots: into how many parts the budget is divided to count bytes; 0: as many as take about a\n"
      "    second.\n"
      "store_rate: bytes a second to a store that may hold kept values; 0: there is none.\n\n"
      "Raises BudgetError with the least bytes that it can plan for, and UsageError if its tables\n"
      "would take more than 4 GiB.");

  py::class_<planners::Rotor>(
      module, "Rotor",
      "rotor() solved once for all budgets up to `most`: a frontier costs as "
      "much as one schedule.")
      .def(py::init([](const Chain& chain, const py::object& most, std::int64_t slots,
                       double store_rate) {
             const Bytes bytes = budget_of(most);
             const py::gil_scoped_release no_gil;
             return planners::Rotor(chain, {.slots = slots, .store = {store_rate}}, bytes);
           }),
           py::arg("chain"), py::arg("most") = py::none(), py::kw_only(), py::arg("slots") = 0,
           py::arg("store_rate") = 0.0)
      .def(
          "plan",
          [](const planners::Rotor& rotor, const py::object& budget) {
            return rotor.plan(budget_of(budget));
          },
          py::arg("budget"), "A larger budget never gives a slower schedule.")
      .def_property_readonly(
          "least", [](const planners::Rotor& rotor) { return rotor.least().count; },
          "The least bytes that plan() takes.");
}

}  // namespace

void bind_chain(py::module_& module) {
  bind_stage(module);
  bind_schedule(module);
  bind_planners(module);
}

}  // namespace reprise::python
