// Extensions of a budget from Python: a log of what its tape does, recorders of traces, and weights.
//
// The tape calls its extensions under the lock of all budgets. A thread that holds the interpreter's lock
// may wait for that lock, so nothing here takes the interpreter's lock meanwhile: the log keeps events
// until Python takes them, and weights are asked for before a step begins.
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <reprise/budget.h>
#include <reprise/budget_extensions.h>
#include <reprise/error.h>
#include <torch/csrc/autograd/python_variable.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.h"
#include "checkpoint_call.h"
#include "record.h"
#include "store.h"

namespace reprise::python {
namespace {

using Memories = std::vector<std::pair<std::uint64_t, std::int64_t>>;

struct Event {
  std::string kind = {};
  std::string name = {};
  Bytes bytes = {}, live = {};
  Seconds time{}, at{};
  Memories arguments = {}, results = {};
  std::vector<std::size_t> written = {};
};

class EventLog final : public BudgetObserver {
 public:
  void recorded(const Operator& done) noexcept override {
    Event event{
        .kind = "operator", .name = std::string(done.name), .live = done.live, .time = done.time};
    event.arguments = of(done.arguments);
    event.results = of(done.results);
    event.written.assign(done.written.begin(), done.written.end());
    for (const Memory& each : done.results) event.bytes += each.bytes;
    add(std::move(event), done.at);
  }
  void dropped(const Value& value) noexcept override { add("dropped", value); }
  void restored(const Value& value) noexcept override { add("restored", value); }
  void spent(const Value& value) noexcept override { add("spent", value); }
  void replayed(const Replay& done) noexcept override {
    add({.kind = "replayed", .name = std::string(done.name), .live = done.live, .time = done.time},
        done.at);
  }
  void released(const Memory& memory) noexcept override {
    Event event{.kind = "released", .bytes = memory.bytes};
    event.arguments = {{memory.id, memory.bytes.count}};
    add(std::move(event), std::nullopt);
  }

  std::size_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_.size();
  }
  std::vector<Event> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  static Memories of(std::span<const Memory> memories) {
    Memories list;
    for (const Memory& each : memories) list.emplace_back(each.id, each.bytes.count);
    return list;
  }
  void add(const char* kind, const Value& value) {
    add({.kind = kind, .name = std::string(value.maker), .bytes = value.bytes, .live = value.live},
        value.at);
  }
  void add(Event event, std::optional<Seconds> at) {
    event.at = at.value_or(std::chrono::steady_clock::now() - start_);
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
  }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::vector<Event> events_;
};

// A call of the step as a function of Python is asked about it.
using CallKey = std::pair<std::uint64_t, std::int64_t>;
using Weights = std::map<CallKey, double>;

// Weights by a dict of operators' names, or by a function that is asked about each new call when the
// next step begins; about each call again, where a function sees gradients meanwhile.
class PythonWeights final : public ValueWeights {
 public:
  PythonWeights(const py::object& given, const py::object& gradient) {
    if (PyCallable_Check(gradient.ptr()) != 0) {
      gradient_ = Owned::borrowed(gradient.ptr());
    } else if (!gradient.is_none()) {
      throw UsageError("value_weights(): gradient is " + py::repr(gradient).cast<std::string>() +
                       "; give a function of (name, kind, number, value, gradient), or None");
    }
    if (py::isinstance<py::dict>(given)) {
      by_name_ = option_as<decltype(by_name_)>(given, "value_weights(): weights",
                                               "a dict of operators' names and their weights");
    } else if (PyCallable_Check(given.ptr()) != 0) {
      function_ = Owned::borrowed(given.ptr());
    } else {
      throw UsageError("value_weights(): the weights are " + py::repr(given).cast<std::string>() +
                       "; give a dict of operators' names, or a function of (name, kind, number)");
    }
  }

  std::string shown() const {
    if (function_) return "<ValueWeights by a function>";
    return "<ValueWeights of " + std::to_string(by_name_.size()) + " operator names>";
  }

  std::unique_ptr<Step> step() override {
    std::map<CallKey, std::string> asked;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      asked.swap(new_calls_);
    }
    if (function_ && (gradient_ || !asked.empty())) ask(asked);
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::make_unique<OneStep>(*this, weights_);
  }

 private:
  class OneStep final : public Step {
   public:
    OneStep(PythonWeights& of, std::shared_ptr<const Weights> weights)
        : of_(of), weights_(std::move(weights)) {}
    double weight(const Call& call) override {
      if (!of_.function_) {
        const auto found = of_.by_name_.find(call.name);
        return found == of_.by_name_.end() ? 1 : found->second;
      }
      const auto found = weights_->find({call.kind, call.number});
      if (found != weights_->end()) return found->second;
      const std::lock_guard<std::mutex> lock(of_.mutex_);
      of_.new_calls_.emplace(CallKey(call.kind, call.number), call.name);
      return 1;
    }
    // Without a lock of the tape.
    void gradient(const Call& call, const at::Tensor& value, const at::Tensor& gradient) override {
      if (!of_.gradient_) return;
      const py::gil_scoped_acquire gil;
      const auto wrap = [](const at::Tensor& tensor) {
        return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
      };
      const py::tuple arguments = py::make_tuple(std::string(call.name), call.kind, call.number,
                                                 wrap(value), wrap(gradient));
      const Owned result(PyObject_Call(of_.gradient_.get(), arguments.ptr(), nullptr));
      if (!result) throw_python_error();
    }

   private:
    PythonWeights& of_;
    const std::shared_ptr<const Weights> weights_;
  };

  void ask(const std::map<CallKey, std::string>& new_calls) {
    std::map<CallKey, std::string> calls = new_calls;
    auto weights = std::make_shared<Weights>();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (gradient_) {
        calls.insert(known_calls_.begin(), known_calls_.end());
        known_calls_ = calls;
      } else {
        *weights = *weights_;
      }
    }
    {
      const py::gil_scoped_acquire gil;
      const py::handle function(function_.get());
      for (const auto& [key, name] : calls) {
        (*weights)[key] = option_as<double>(function(name, key.first, key.second),
                                            "value_weights(): the weight of " + name);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    weights_ = std::move(weights);
  }

  std::map<std::string, double, std::less<>> by_name_;
  Owned function_, gradient_;
  std::mutex mutex_;
  std::shared_ptr<const Weights> weights_ = std::make_shared<Weights>();
  std::map<CallKey, std::string> new_calls_;    // since the last step began
  std::map<CallKey, std::string> known_calls_;  // where each is asked about again
};

void bind_observers(py::module_& module) {
  Record<Event>(module, "BudgetEvent",
                "An event of a step's tape, with bytes (int) and times (float, seconds).\n\n"
                "EventLog.take() returns them.")
      .figure(
          "kind", &Event::kind,
          "\"operator\": the program ran one. \"dropped\", \"restored\": a value. \"spent\": a value "
          "that was restored for replays alone. \"replayed\": an operator ran again. \"released\": "
          "the program no longer holds a storage.")
      .figure("name", &Event::name, "The operator, or the one that made the value.")
      .figure("bytes", &Event::bytes, "Those of the value or the storage, or of all results.")
      .figure("live", &Event::live, "All live bytes after it; 0 for \"released\".")
      .figure("time", &Event::time,
              "Seconds of the operator, without those to restore its arguments.")
      .figure(
          "at", &Event::at,
          "Seconds since the log was made; on an accelerator since the step began, by its clock.")
      .detail("arguments", &Event::arguments,
              "A list of (id, bytes): the storages that the operator read, or that was released.")
      .detail("results", &Event::results, "A list of (id, bytes): the storages that it made.")
      .detail("written", &Event::written, "Indices of the arguments that it changed.")
      .pickled();

  py::class_<BudgetObserver, std::shared_ptr<BudgetObserver>>(
      module, "BudgetObserver",
      "An observer for MemoryBudget(observer=...): an EventLog or a TraceRecorder.");
  py::class_<EventLog, BudgetObserver, std::shared_ptr<EventLog>>(
      module, "EventLog",
      "Keeps the events of a budget's steps until take() is called. Views make no memory and have no\n"
      "events. Any thread may use it.\n\n"
      "    log = reprise.EventLog()\n"
      "    budget = reprise.MemoryBudget(\"8GiB\", observer=log)\n"
      "    ...\n"
      "    sum(event.time for event in log.take() if event.kind == \"replayed\")")
      .def(py::init<>())
      .def("take", &EventLog::take, "The events since the last call: a list of BudgetEvent.")
      .def("__repr__",
           [](EventLog& log) { return "<EventLog: " + std::to_string(log.size()) + " events>"; });

  py::class_<TraceRecorder, BudgetObserver, std::shared_ptr<TraceRecorder>>(
      module, "TraceRecorder",
      "Records a step as a trace that StepTrace reads.\n\n"
      "    with reprise.TraceRecorder(\"step.jsonl.gz\") as recorder:\n"
      "        budget = reprise.MemoryBudget(\"64GiB\", observer=recorder)\n"
      "        with budget.step():\n"
      "            ...\n"
      "    reprise.StepTrace.read(\"step.jsonl.gz\")\n\n"
      "The trace holds what the program did, whatever was dropped meanwhile. Makes or replaces the\n"
      "file, compressed if its name ends in \".gz\". Raises UsageError if it cannot be made.")
      .def(py::init<const std::filesystem::path&>(), py::arg("file"))
      .def("close", &TraceRecorder::close, py::call_guard<py::gil_scoped_release>(),
           "Writes the trace: call it once, when the step has ended. Raises Error if it cannot be\n"
           "written as a whole.")
      .def("__enter__", [](const py::object& recorder) { return recorder; })
      .def("__exit__", [](TraceRecorder& recorder, const py::args&) {
        const py::gil_scoped_release no_gil;
        recorder.close();
      });
}

void bind_weights(py::module_& module) {
  py::class_<ValueWeights, std::shared_ptr<ValueWeights>>(
      module, "ValueWeights", "Weights for MemoryBudget(weights=...); value_weights() makes them.")
      .def("__repr__", [](const ValueWeights& weights) {
        const auto* const given = dynamic_cast<const PythonWeights*>(&weights);
        return given != nullptr ? given->shown() : "<ValueWeights by influence>";
      });
  module.def(
      "value_weights",
      [](const py::object& weights, const py::object& gradient) -> std::shared_ptr<ValueWeights> {
        return std::make_shared<PythonWeights>(weights, gradient);
      },
      py::arg("weights"), py::kw_only(), py::arg("gradient") = py::none(),
      "Weights of values: the score by which a budget drops a value is multiplied by its weight.\n\n"
      "weights: a dict from operators' names (\"aten::mm\") to weights, or a function of (name, kind,\n"
      "    number). The function is asked about a call when the step after it begins. Calls of the same\n"
      "    shapes have an equal `kind`. A call's place in the step is its `number`. Until then, and\n"
      "    where nothing is known, a weight is 1.\n"
      "gradient: a function of (name, kind, number, value, gradient), called when backward has made the\n"
      "    gradient of a call's result, if the value has its bytes then. Both are tensors of one shape;\n"
      "    do not change or keep them. It is called on the threads of backward, under the interpreter's\n"
      "    lock, and what it raises leaves backward as it is. With it, the function of weights is asked\n"
      "    about each known call whenever a step begins.\n\n"
      "Both functions are held as long as a budget has the weights, unseen by the garbage collector: one\n"
      "that refers to its budget, or is a method of an object that has the budget, should do so by a\n"
      "weakref.\n\n"
      "Values of weights below 1 are dropped sooner. Gradients are bitwise the same whatever they are.\n"
      "Weights are from 1e-30 to 1e30; another one is a UsageError from the operator.");
}

}  // namespace

namespace {

template <class Given>
Given given_as(const py::handle& value, const char* what) {
  if (!value.is_none() && !py::isinstance<std::remove_cvref_t<decltype(*Given())>>(value)) {
    throw UsageError("MemoryBudget: " + std::string(what) + "; it is " +
                     py::repr(value).cast<std::string>());
  }
  return value.cast<Given>();
}

}  // namespace

bool set_extension(BudgetOptions& options, const std::string& name, const py::handle& value) {
  if (name == "store") {
    const auto* const store =
        given_as<const PythonStore*>(value, "give a store, such as disk_store(), or None");
    if (store != nullptr && store->is_written()) {
      throw UsageError(
          "MemoryBudget: the store is written in Python, and the tape parks under a lock for which threads of Python may "
          "wait; give disk_store() or another one of reprise, or use reprise.offload() with your store inside the step");
    }
    if (store != nullptr) options.store = store->get();
  } else if (name == "weights") {
    options.weights = given_as<std::shared_ptr<ValueWeights>>(
        value, "weights are those of value_weights() or influence_weights(), or None");
  } else if (name == "observer") {
    options.observer = given_as<std::shared_ptr<BudgetObserver>>(
        value, "an observer is an EventLog, a TraceRecorder or None");
  } else {
    return false;
  }
  return true;
}

void bind_extensions(py::module_& module) {
  bind_observers(module);
  bind_weights(module);
}

}  // namespace reprise::python
