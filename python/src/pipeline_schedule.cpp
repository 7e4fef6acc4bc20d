// Schedules of pipelines from Python: tables, what they hold at once, and simulated steps.
#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <reprise/error.h>
#include <reprise/pipeline_residency.h>
#include <reprise/pipeline_schedule.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "record.h"

namespace reprise::python {
namespace {

constexpr std::string_view kLetters = "FBIW";

char letter_of(PipelineWork work) { return kLetters[static_cast<std::size_t>(work)]; }

PipelineWork work_of(const std::string& letter) {
  const auto place = letter.size() == 1 ? kLetters.find(letter) : kLetters.npos;
  if (place != kLetters.npos) return static_cast<PipelineWork>(place);
  throw UsageError("PipelineAction: work is '" + letter +
                   "'; it is 'F' (forward), 'B' (backward), 'I' (input gradient) or 'W' (weight "
                   "gradient)");
}

std::vector<PipelineMicroBatch> all_of(const PipelineResidency::Stage& stage) {
  std::vector<PipelineMicroBatch> all;
  for (std::int64_t i = 0; i < std::ssize(stage.choice_of); ++i) all.push_back(stage.of(i));
  return all;
}

void bind_table(py::module_& module) {
  py::class_<PipelineAction>(module, "PipelineAction",
                             "A worker does this at one place of its list; str() is \"0F3\".")
      .def(py::init([](std::int64_t stage, const std::string& work, std::int64_t micro_batch) {
             return PipelineAction{stage, work_of(work), micro_batch};
           }),
           py::arg("stage"), py::arg("work"), py::arg("micro_batch"))
      .def_readonly("stage", &PipelineAction::stage, "Of the model, counted from 0.")
      .def_property_readonly(
          "work",
          [](const PipelineAction& action) { return std::string(1, letter_of(action.work)); },
          "\"F\" forward, \"B\" backward, \"I\" gradient of the stage's input, \"W\" of its parameters.")
      .def_readonly("micro_batch", &PipelineAction::micro_batch,
                    "Of the mini-batch, counted from 0.")
      .def("__str__", [](const PipelineAction& action) { return to_string(action); })
      .def("__repr__",
           [](const PipelineAction& action) {
             return "PipelineAction(" + std::to_string(action.stage) + ", '" +
                    letter_of(action.work) + "', " + std::to_string(action.micro_batch) + ")";
           })
      .def("__hash__",
           [](const PipelineAction& action) { return py::hash(py::str(to_string(action))); })
      .def(py::self == py::self)
      .def(py::pickle(
          [](const PipelineAction& action) {
            return std::tuple(action.stage, static_cast<int>(action.work), action.micro_batch);
          },
          [](const std::tuple<std::int64_t, int, std::int64_t>& values) {
            const auto [stage, work, micro_batch] = values;
            return PipelineAction{stage, static_cast<PipelineWork>(work), micro_batch};
          }));

  using Workers = std::vector<std::vector<PipelineSlot>>;
  py::class_<PipelineSchedule>(
      module, "PipelineSchedule",
      "A list of slots for each worker; a slot is a list of no action, one, or two that may overlap.\n\n"
      "`csv()` writes and `read_csv()` reads the form of torch.distributed.pipelining.")
      .def(py::init([](std::int64_t stages, std::int64_t micro_batches, Workers workers,
                       std::string name) {
             PipelineSchedule schedule{std::move(name), stages, micro_batches, std::move(workers)};
             schedule.check();
             return schedule;
           }),
           py::arg("stages"), py::arg("micro_batches"), py::arg("workers"), py::kw_only(),
           py::arg("name") = "",
           "Raises PlanError, with worker and slot, for a list that cannot run.")
      .def_readonly("name", &PipelineSchedule::name, "For pictures; empty if read from text.")
      .def_readonly("stages", &PipelineSchedule::stages, "The number of stages of the model.")
      .def_readonly("micro_batches", &PipelineSchedule::micro_batches,
                    "The number of micro-batches of a mini-batch.")
      .def_property_readonly(
          "workers", [](const PipelineSchedule& schedule) { return schedule.workers; },
          "A copy of the lists.")
      .def("worker_of_stage", &PipelineSchedule::worker_of_stage,
           "The worker that runs each stage, as a list.")
      .def("csv", &PipelineSchedule::csv, "A line for each worker, as `0F0,0F1,,0B0`.")
      .def_static("parse_csv", &PipelineSchedule::parse_csv, py::arg("text"),
                  "Raises PlanError, with line and cell, for a text that is no schedule.")
      .def_static("read_csv", &PipelineSchedule::read_csv, py::arg("file"),
                  "The same from a file. Raises UsageError if it cannot be read.")
      .def("__repr__",
           [](const PipelineSchedule& schedule) {
             return "<PipelineSchedule '" + schedule.name +
                    "': " + std::to_string(schedule.workers.size()) + " workers, " +
                    std::to_string(schedule.stages) + " stages, " +
                    std::to_string(schedule.micro_batches) + " micro-batches>";
           })
      .def(py::self == py::self)
      .def(py::pickle(
          [](const PipelineSchedule& it) {
            return std::tuple(it.name, it.stages, it.micro_batches, it.workers);
          },
          [](std::tuple<std::string, std::int64_t, std::int64_t, Workers> values) {
            return std::make_from_tuple<PipelineSchedule>(std::move(values));
          }));
}

// The functions of reprise.schedules, as static methods of a class.
struct Schedules {};
using SchedulesClass = py::class_<Schedules>;

void bind_names(SchedulesClass& type) {
  const auto one_a_worker = [&](const char* name, auto function, const char* doc) {
    type.def_static(name, function, py::arg("workers"), py::arg("micro_batches"), doc);
  };
  const auto several = [&](const char* name, auto function, const char* doc) {
    type.def_static(name, function, py::arg("workers"), py::arg("stages_per_worker"),
                    py::arg("micro_batches"), doc);
  };
  type.def_static(
      "gpipe",
      [](std::int64_t workers, std::int64_t micro_batches, bool ascending) {
        return schedules::gpipe(workers, micro_batches,
                                ascending ? schedules::BackwardOrder::kAscending
                                          : schedules::BackwardOrder::kDescending);
      },
      py::arg("workers"), py::arg("micro_batches"), py::kw_only(), py::arg("ascending") = false,
      "All forwards, then all backwards; the last micro-batch first, unless `ascending`.");
  one_a_worker("one_forward_one_backward", &schedules::one_forward_one_backward,
               "At most `workers` - stage micro-batches are in flight on a stage.");
  several("looped_breadth_first", &schedules::looped_breadth_first,
          "All micro-batches pass a stage before the worker's next stage begins.");
  several("interleaved_1f1b", &schedules::interleaved_1f1b, "1F1B with several stages a worker.");
  several("interleaved_zero_bubble", &schedules::interleaved_zero_bubble,
          "The same, with input and weight gradients apart.");
  one_a_worker("zero_bubble_v", &schedules::zero_bubble_v,
               "ZB-V: worker w has the stages w and 2 x workers - 1 - w.");
  one_a_worker("dual_pipe_v", &schedules::dual_pipe_v,
               "DualPipe cut in half; at least 2 x workers micro-batches.");
  type.def_static("by_name", &schedules::by_name, py::arg("name"), py::arg("workers"),
                  py::arg("stages_per_worker"), py::arg("micro_batches"),
                  "The schedule with one of the names().");
  type.def_static("names", &schedules::names, "The names that Pipeline takes as `schedule`.");

  type.def_static(
      "balance_by_cost", &balance_by_cost, py::arg("costs"), py::arg("parts"),
      "The layers of each of `parts` runs of layers, whose largest sum of costs is least.");
  type.def_static(
      "balance",
      [](const std::vector<double>& times, const std::vector<py::object>& sizes, std::int64_t parts,
         const py::object& bytes_per_part) {
        std::vector<Seconds> seconds(times.begin(), times.end());
        std::vector<Bytes> bytes;
        for (const py::object& size : sizes) bytes.push_back(bytes_of(size, "balance: bytes"));
        return balance(seconds, bytes, parts, bytes_of(bytes_per_part, "balance: bytes_per_part"));
      },
      py::arg("seconds"), py::arg("bytes"), py::arg("parts"), py::arg("bytes_per_part"),
      "The cut whose slowest part is fastest, where no part's bytes are more.\n\n"
      "Raises BudgetError, with the least bytes that would do.");
}

void bind_lives(py::module_& module, SchedulesClass& schedules) {
  using Worker = PipelineLives::Worker;
  Record<Worker>(module, "WorkerLives", "How many activations a worker holds.")
      .detail("kept", &Worker::kept, "After each slot of the worker's list.")
      .detail("checkpointed", &Worker::checkpointed,
              "The same for activations that are recomputed.")
      .figure("peak_kept", &Worker::peak_kept, "The most at once.")
      .figure("peak_checkpointed", &Worker::peak_checkpointed,
              "The most at once of those that are recomputed.")
      .detail("buffer", &Worker::buffer,
              "The buffer of each activation, in the order of the worker's forwards.")
      .figure("buffers", &Worker::buffers, "The number of buffers, as few as lives permit.")
      .pickled();
  schedules.def_static(
      "activation_lives",
      [](const PipelineSchedule& schedule, std::int64_t checkpoint_stop) {
        return activation_lives(schedule, checkpoint_stop).workers;
      },
      py::arg("schedule"), py::arg("checkpoint_stop") = 0,
      "The lives of what stages save, for each worker. Micro-batches below `checkpoint_stop` are\n"
      "checkpointed.");
}

void bind_timeline(py::module_& module) {
  Record<PipelineEvent>(
      module, "PipelineEvent",
      "One action of a worker, with its times (float, seconds from the begin of the step).")
      .figure("action", &PipelineEvent::action, "What the worker did: a PipelineAction.")
      .figure("recompute", &PipelineEvent::recompute,
              "Whether it is the recomputation before that B or I.")
      .figure("begin", &PipelineEvent::begin, "Seconds from the begin of the step.")
      .figure("end", &PipelineEvent::end, "Seconds from the begin of the step.")
      .pickled();

  using Worker = PipelineTimeline::Worker;
  Record<Worker>(module, "WorkerTimeline", "What one worker did in a step.")
      .detail("events", &Worker::events, "In order.")
      .figure("busy", &Worker::busy, "The sum of the events, in seconds.")
      .figure("peak", &Worker::peak, "Predicted bytes; 0 where none were.")
      .pickled();

  Record<PipelineTimeline> timeline(
      module, "PipelineTimeline",
      "What a step did, or is predicted to do: times (float, seconds from the begin of the step).\n\n"
      "A notebook shows svg().");
  timeline.figure("name", &PipelineTimeline::name, "That of the schedule.")
      .detail("workers", &PipelineTimeline::workers, "A list of WorkerTimeline.")
      .figure("time", &PipelineTimeline::time, "Seconds of the step.")
      .figure("bubble", &PipelineTimeline::bubble,
              "The share of workers x time in which workers are idle.")
      .pickled();
  timeline.type()
      .def(
          "text", &PipelineTimeline::text, py::arg("columns") = 100,
          "A row for each worker: a letter (R for a recomputation) and the micro-batch; `.` is idle.\n\n"
          "Raises UsageError if `columns` is not between 1 and 10,000.")
      .def("svg", &PipelineTimeline::svg,
           "A picture. Raises UsageError for more than a million events.")
      .def("chrome_trace", &PipelineTimeline::chrome_trace,
           "The JSON of chrome://tracing and Perfetto.");
  timeline.type().attr("_repr_html_") =
      py::cpp_function(&PipelineTimeline::svg, py::is_method(timeline.type()));
}

void bind_simulation(py::module_& module, SchedulesClass& schedules) {
  py::class_<PipelineStageCosts>(
      module, "PipelineStageCosts",
      "The figures of one stage and micro-batch: times in seconds, bytes as an int or a str.")
      .def(
          py::init([](double forward, double backward, double input_gradient,
                      double weight_gradient, double recompute, double send,
                      const py::object& input, const py::object& saved,
                      const py::object& saved_for_weights, const py::object& temporaries,
                      const py::object& resident) {
            const auto size = [](const py::object& value, const char* name) {
              return bytes_of(value, std::string("PipelineStageCosts: ") + name);
            };
            return PipelineStageCosts{Seconds(forward),
                                      Seconds(backward),
                                      Seconds(input_gradient),
                                      Seconds(weight_gradient),
                                      Seconds(recompute),
                                      Seconds(send),
                                      size(input, "input"),
                                      size(saved, "saved"),
                                      size(saved_for_weights, "saved_for_weights"),
                                      size(temporaries, "temporaries"),
                                      size(resident, "resident")};
          }),
          py::kw_only(), py::arg("forward") = 0.0, py::arg("backward") = 0.0,
          py::arg("input_gradient") = 0.0, py::arg("weight_gradient") = 0.0,
          py::arg("recompute") = 0.0, py::arg("send") = 0.0, py::arg("input") = 0,
          py::arg("saved") = 0, py::arg("saved_for_weights") = 0, py::arg("temporaries") = 0,
          py::arg("resident") = 0,
          "input_gradient, weight_gradient: both 0: each takes half of `backward`.\n"
          "recompute: the second forward of a checkpointed micro-batch.\n"
          "send: of the output to the next stage, and of the gradient back.\n"
          "input: of the stage. saved: for backward besides the input. saved_for_weights: the part of\n"
          "both that W needs after I. temporaries: at once. resident: parameters and gradients.");

  schedules.def_static(
      "simulate",
      [](const PipelineSchedule& schedule,
         const std::optional<std::vector<PipelineStageCosts>>& costs, std::int64_t checkpoint_stop,
         const std::optional<PipelineResidency>& plan, bool recompute_ahead) {
        const PipelineCosts given =
            costs ? PipelineCosts{*costs} : PipelineCosts::even(schedule.stages);
        PipelineSimulation options{.checkpoint_stop = checkpoint_stop,
                                   .recompute_ahead = recompute_ahead};
        if (plan) {
          for (const auto& stage : plan->stages) options.micro_batches.push_back(all_of(stage));
        }
        const py::gil_scoped_release no_gil;
        return simulate(schedule, given, options);
      },
      py::arg("schedule"), py::arg("costs") = py::none(), py::kw_only(),
      py::arg("checkpoint_stop") = 0, py::arg("plan") = py::none(),
      py::arg("recompute_ahead") = true,
      "The timeline of a step, with PipelineStageCosts for each stage.\n\n"
      "costs: None: forward takes 1 second, backward 2, a recomputation, I and W 1 each.\n"
      "checkpoint_stop: micro-batches below it are checkpointed.\n"
      "plan: in its place, what Pipeline.plan() returned.\n"
      "recompute_ahead: a recomputation starts before the gradient has arrived.\n\n"
      "Raises UsageError for costs of another number of stages.");
}

std::vector<std::int64_t> counts_of(const std::vector<Bytes>& bytes) {
  std::vector<std::int64_t> counts;
  for (const Bytes each : bytes) counts.push_back(each.count);
  return counts;
}

// The bytes of each worker.
template <std::vector<Bytes> PipelineResidency::*kMember>
void bind_counts(Record<PipelineResidency>& plan, const char* name, const char* doc) {
  const auto get = [](const PipelineResidency& it) { return counts_of(it.*kMember); };
  plan.detail(name, get, doc)
      .kept(get, [](PipelineResidency& it, const std::vector<std::int64_t>& counts) {
        it.*kMember = std::vector<Bytes>(counts.begin(), counts.end());
      });
}

void bind_residency(py::module_& module) {
  Record<PipelineMicroBatch>(module, "PipelineMicroBatch",
                             "The bytes and seconds of one stage and one micro-batch.")
      .figure("kept", &PipelineMicroBatch::kept,
              "Bytes between its forward and its backward, its input included.")
      .figure("forward_peak", &PipelineMicroBatch::forward_peak, "Bytes during its forward.")
      .figure("backward_peak", &PipelineMicroBatch::backward_peak,
              "Bytes from its recomputation to the end of its backward.")
      .figure("recompute", &PipelineMicroBatch::recompute,
              "Seconds before its backward, without waiting for the gradient.")
      .figure("recompute_within", &PipelineMicroBatch::recompute_within,
              "Seconds during its backward.")
      .figure("recomputed_layers", &PipelineMicroBatch::recomputed_layers,
              "Layers that run at least twice.")
      .figure("layers", &PipelineMicroBatch::layers, "All layers of the stage.")
      .pickled();

  using Stage = PipelineResidency::Stage;
  Record<Stage>(module, "PipelineStageResidency", "The plan of one stage for each micro-batch.")
      .figure("worker", &Stage::worker, "The worker that runs the stage.")
      .detail("micro_batches", &all_of, "A list of PipelineMicroBatch.")
      .kept(&Stage::most_inputs_waiting)
      .kept(&Stage::most_gradients_waiting)
      .kept(&Stage::choice_of)
      .kept(&Stage::choices)
      .kept(&Stage::schedules)
      .pickled();

  Record<PipelineResidency> plan(module, "PipelineResidency",
                                 "What stages keep, planned from bytes.");
  plan.detail("stages", &PipelineResidency::stages, "A list of PipelineStageResidency.");
  bind_counts<&PipelineResidency::peaks>(plan, "peaks",
                                         "The most bytes of each worker at once, as predicted.");
  bind_counts<&PipelineResidency::bytes>(plan, "bytes", "The bytes given to each worker.");
  plan.figure("timeline", &PipelineResidency::timeline, "The predicted step.").pickled();
  plan.type().def(
      "text", &PipelineResidency::text,
      "For each stage the micro-batches that are kept, and how many layers of the others run again.");
}

}  // namespace

void bind_pipeline_schedule(py::module_& module) {
  SchedulesClass schedules(module, "schedules", "The functions of reprise.schedules.");
  bind_table(module);
  bind_names(schedules);
  bind_lives(module, schedules);
  bind_timeline(module);
  bind_residency(module);
  bind_simulation(module, schedules);
}

}  // namespace reprise::python
