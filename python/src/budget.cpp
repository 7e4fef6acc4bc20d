// Byte budgets from Python: MemoryBudget, its steps, reports and plans.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <reprise/budget.h>
#include <reprise/error.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "bindings.h"
#include "libtorch/autograd/engine.h"
#include "record.h"

namespace reprise::python {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

// The owner may have to wait for the thread that plans, and a step to run operators.
struct DeletesWithoutGil {
  template <class T>
  void operator()(T* object) const {
    const py::gil_scoped_release no_gil;
    delete object;
  }
};
// A budget, and what its repr says besides the limit.
struct PythonBudget {
  c10::Device device;
  MemoryBudget budget;
};
using Budget = std::unique_ptr<PythonBudget, DeletesWithoutGil>;

// Opened by `with`, on the thread that enters it.
class Step {
 public:
  explicit Step(MemoryBudget& budget) : budget_(budget) {}
  // A step that nobody has ended ends here.
  ~Step() {
    if (step_) step_ends();
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void enter() {
    if (is_used_) {
      throw UsageError(
          "MemoryBudget: this step was entered before; call budget.step() for each step");
    }
    is_used_ = true;
    thread_ = std::this_thread::get_id();
    step_.emplace(budget_.step());
    step_begins();
  }
  void finish() {
    require_thread();
    if (!step_) return;
    step_->finish();
    step_.reset();
    step_ends();
  }
  std::int64_t past_operators() const { return budget_.report().past_operators.count; }
  // After an exception in its block: ends it, and it is no step to learn from.
  void abandon() {
    require_thread();
    if (!step_) return;
    step_ends();
    try {
      // A step that ends while an exception is on its way is not whole.
      const MemoryBudget::Step ended(std::move(*step_));
      step_.reset();
      throw Abandoned();
    } catch (
        const Abandoned&) {  // NOLINT(bugprone-empty-catch): thrown for what it does on its way
    }
  }

 private:
  struct Abandoned {};

  void require_thread() const {
    if (thread_ == std::this_thread::get_id()) return;
    throw UsageError(is_used_
                         ? "MemoryBudget: a step ends on the thread that entered it"
                         : "MemoryBudget: this step was not entered; use `with budget.step():`");
  }

  MemoryBudget& budget_;
  std::optional<MemoryBudget::Step> step_;
  std::thread::id thread_;
  bool is_used_ = false;
};

void finish(Step& step) {
  std::int64_t past_operators = 0;
  {
    const py::gil_scoped_release no_gil;
    step.finish();
    past_operators = step.past_operators();
  }
  py::module_::import("reprise._graphs").attr("step_ended")(past_operators);
}

void abandon(Step& step) {
  const py::gil_scoped_release no_gil;
  step.abandon();
  libtorch::free_leftovers_of_backward();
}

OnExceeded on_exceeded_of(const std::string& text) {
  if (text == "raise") return OnExceeded::kThrow;
  if (text == "warn") return OnExceeded::kWarn;
  if (text == "pass") return OnExceeded::kPass;
  throw UsageError("MemoryBudget: on_exceeded is '" + text + "'; it is 'raise', 'warn' or 'pass'");
}

BudgetOptions options_of(const py::kwargs& given) {
  BudgetOptions options;
  if (!given.contains("device")) options.device = default_device();
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const std::string of = "MemoryBudget: " + name;
    if (name == "device") {
      options.device = device_of(value);
    } else if (name == "on_exceeded") {
      options.on_exceeded = on_exceeded_of(option_as<std::string>(value, of));
    } else if (name == "heuristic") {
      options.heuristic = parse_heuristic(option_as<std::string>(value, of));
    } else if (name == "min_bytes") {
      options.min_bytes = bytes_of(value, "MemoryBudget: min_bytes");
    } else if (name == "plan_repeated_steps") {
      options.plan_repeated_steps = option_as<bool>(value, of);
    } else if (name == "planning_time") {
      options.planning_time = Seconds(option_as<double>(value, of));
    } else if (name == "replay_limit") {
      options.replay_limit = Seconds(option_as<double>(value, of));
    } else if (name == "verify") {
      options.verify = option_as<bool>(value, of);
    } else if (name == "paranoid") {
      options.paranoid = option_as<bool>(value, of);
    } else if (!set_extension(options, name, value)) {
      throw py::type_error("MemoryBudget() got an unexpected keyword argument '" + name + "'");
    }
  }
  return options;
}

void bind_report(py::module_& module) {
  Record<StepReport>(module, "StepReport",
                     "The counts, bytes (int) and times (float, seconds) of one step.")
      .figure("peak", &StepReport::peak, "The most bytes live at once.")
      .figure(
          "other_threads", &StepReport::other_threads,
          "The part of the peak that threads outside of all steps held at once. The peak may pass the limit by it.")
      .figure(
          "past_operators", &StepReport::past_operators,
          "The most bytes held at once of what the step's threads allocated past torch's operators: compiled graphs, other libraries. A budget cannot drop them.")
      .figure("operators", &StepReport::operators, "Recorded calls and small ones.")
      .figure("dropped", &StepReport::dropped, "Values.")
      .figure("dropped_bytes", &StepReport::dropped_bytes, "Bytes of the dropped values.")
      .figure("replayed", &StepReport::replayed, "Operators that ran again.")
      .figure("replay_time", &StepReport::replay_time, "Seconds of replays.")
      .figure("packed", &StepReport::packed,
              "Values, such as dropout masks, packed into a bit for each element.")
      .figure("packed_bytes", &StepReport::packed_bytes, "Their bytes before packing.")
      .figure("unpacked", &StepReport::unpacked, "Values restored from the bits.")
      .figure("pack_time", &StepReport::pack_time, "Seconds for packing and unpacking.")
      .figure("followed", &StepReport::followed, "Operators that matched a step with a plan.")
      .figure("parked", &StepReport::parked, "Values moved to the store.")
      .figure("parked_bytes", &StepReport::parked_bytes, "Their bytes.")
      .figure("loaded", &StepReport::loaded, "Values loaded from the store.")
      .figure("transfer_time", &StepReport::transfer_time,
              "Seconds that the step waited for the store.")
      .figure("own_time", &StepReport::own_time, "Seconds of the library's own work on the host.")
      .pickled();
}

void bind_plan(py::module_& module) {
  Record<LearnedPlan> plan(
      module, "LearnedPlan",
      "It says what a repeated step drops after which operator, and when it restores it.\n\n"
      "A job can begin with the plan of an earlier one: `budget.use(LearnedPlan.read(file))`.");
  plan.type()
      .def_static(
          "read", &LearnedPlan::read, py::arg("file"), NoGil(),
          "Raises UsageError, with file, line and field, for a file that is no plan or was changed.")
      .def_static("parse", &LearnedPlan::parse, py::arg("json"), py::arg("origin") = "text",
                  NoGil(), "The plan of a text; `origin` names the text in errors.")
      .def("json", &LearnedPlan::json, NoGil(), "The plan as text.")
      .def("write", &LearnedPlan::write, py::arg("file"), NoGil(), "Makes or replaces the file.");
  plan.figure(
          "limit", [](const LearnedPlan& it) { return it.figures().limit; },
          "Bytes of the budget that it was made for.")
      .figure(
          "slowdown", [](const LearnedPlan& it) { return it.figures().slowdown; },
          "In the planner's model: the step's time with replays divided by the time without.")
      .figure(
          "bound", [](const LearnedPlan& it) { return it.figures().bound; },
          "A proven bound that no plan's slowdown can be below.")
      .figure("step", &LearnedPlan::step,
              "A hash of all operators: equal for steps that are the same.")
      .figure("operators", &LearnedPlan::operators, "The number of operators of the step.")
      .pickled_as_text();
}

}  // namespace

void bind_budget(py::module_& module) {
  module.def(
      "free_leftovers_of_backward", &libtorch::free_leftovers_of_backward, NoGil(),
      "Frees what failed backward calls of this thread have left. torch does so in the thread's next call.");
  bind_report(module);
  bind_plan(module);

  py::class_<Step, std::unique_ptr<Step, DeletesWithoutGil>>(
      module, "Step", "One step of a MemoryBudget: `with budget.step(): ...`.")
      .def(
          "__enter__",
          [](Step& step) -> Step& {
            py::module_::import("reprise._access").attr("install")();
            const py::gil_scoped_release no_gil;
            step.enter();
            return step;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](Step& step, const py::object& type, const py::object&,
                          const py::object&) { type.is_none() ? finish(step) : abandon(step); })
      .def("finish", &finish,
           "Ends the step before its block does: restores dropped values that are still held.\n\n"
           "Raises BudgetError if they do not fit. A second call does nothing.");

  py::class_<PythonBudget, Budget>(
      module, "MemoryBudget",
      "At most `limit` bytes on a device while a step runs.\n\n"
      "    budget = reprise.MemoryBudget(\"8GiB\")\n"
      "    with budget.step():\n"
      "        model(batch).backward()\n\n"
      "The bytes are all that the device's allocator has handed out: also parameters,\n"
      "gradients, optimizer state and temporaries. When an allocation would pass them,\n"
      "activations are dropped, and computed again before they are read. Gradients are\n"
      "bitwise those of the plain step.\n\n"
      "limit: an int of bytes, or a str such as \"8GiB\" or \"400MB\".\n"
      "device: the CPU or one accelerator; None: the machine's accelerator, where it has one.\n"
      "on_exceeded: 'raise' (BudgetError, default), or 'warn' and 'pass' (pass the limit, where\n"
      "nothing more can be dropped).\n"
      "heuristic: which value is dropped first where no plan decides; 'h_up'.\n"
      "min_bytes: smaller values are not dropped; 16 KiB.\n"
      "plan_repeated_steps: plan steps that repeat, in the background; True.\n"
      "planning_time: the most seconds for planning one step; 10.\n"
      "replay_limit: the most seconds that a step may spend on replays; no limit.\n"
      "store: parks values there if that is faster than computing them; a disk_store(), or a host_store()\n"
      "for an accelerator.\n"
      "weights: value_weights() or influence_weights(): which values are dropped sooner.\n"
      "observer: an EventLog or a TraceRecorder, which is told what happens.\n"
      "verify: compare every replayed value with a hash of the dropped one.\n"
      "paranoid: drop everything after every operator, for tests.\n\n"
      "Raises UsageError for a limit that is not positive and for options out of range.")
      .def(py::init([](const py::object& limit, const py::kwargs& given) {
             const Bytes bytes = bytes_of(limit, "MemoryBudget: the limit");
             const BudgetOptions options = options_of(given);
             return Budget(new PythonBudget{options.device, MemoryBudget(bytes, options)});
           }),
           py::arg("limit"))
      .def_static(
          "fraction_of_device",
          [](const py::object& fraction, const py::kwargs& given) {
            const auto share =
                option_as<double>(fraction, "MemoryBudget: the fraction of the device",
                                  "a number above 0 and at most 1");
            const BudgetOptions options = options_of(given);
            return Budget(
                new PythonBudget{options.device, MemoryBudget::fraction_of_device(share, options)});
          },
          py::arg("fraction"),
          "A fraction of all bytes of the device, above 0 and at most 1; UsageError for others.\n\n"
          "For the CPU these are the machine's memory or, if that is smaller, its control group's limit.")
      .def(
          "step",
          [](PythonBudget& it) {
            return std::unique_ptr<Step, DeletesWithoutGil>(new Step(it.budget));
          },
          py::keep_alive<0, 1>(),
          "A step, for `with`: what runs in its block, and every backward called in it, stays within the bytes.")
      .def(
          "report", [](const PythonBudget& it) { return it.budget.report(); }, NoGil(),
          "The report of the step that ended last, or of the one under way.")
      .def(
          "plan", [](const PythonBudget& it) { return it.budget.plan(); }, NoGil(),
          "The plan that was followed or made last; None if no step repeated or nothing was ever dropped.")
      .def(
          "use",
          [](PythonBudget& it, const LearnedPlan& plan, bool learn_other_step) {
            it.budget.use(plan, learn_other_step ? MemoryBudget::OnOtherStep::kLearn
                                                 : MemoryBudget::OnOtherStep::kThrow);
          },
          py::arg("plan"), py::kw_only(), py::arg("learn_other_step") = false, NoGil(),
          "From the next step on, steps that begin like the plan's follow it.\n\n"
          "Raises UsageError for a plan made for more bytes than the limit. If the next whole step is another one,\n"
          "it raises PlanError when it ends, unless `learn_other_step`.")
      .def(
          "wait_for_plan",
          [](const PythonBudget& it, double most) {
            return it.budget.wait_for_plan(Seconds(most));
          },
          py::arg("most"), NoGil(),
          "Waits at most that many seconds until nothing is being planned; whether nothing is.")
      .def_property_readonly(
          "least",
          [](const PythonBudget& it) {
            const py::gil_scoped_release no_gil;
            const auto least = it.budget.least();
            return least ? std::optional(least->count) : std::nullopt;
          },
          "An estimate of the least bytes in which a step runs; None before the first whole step.")
      // A copy of what has a budget shares it.
      .def("__copy__", [](py::object self) { return self; })
      .def("__deepcopy__", [](py::object self, const py::object&) { return self; })
      .def_property_readonly(
          "limit", [](const PythonBudget& it) { return it.budget.limit().count; }, "Bytes.")
      .def("__repr__", [](const PythonBudget& it) {
        return "MemoryBudget(limit=" + std::to_string(it.budget.limit().count) + ", device='" +
               it.device.str() + "')";
      });
}

}  // namespace reprise::python
