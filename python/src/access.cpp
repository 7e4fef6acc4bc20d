// Access to a tensor's bytes past operators: by Python's own methods, by kernels of compiled graphs, and by
// LibTorch's profiler and execution trace, which read pointers before an operator has its arguments back.
#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <reprise/budget.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "bindings.h"
#include "libtorch/memory/caught_refusal.h"
#include "libtorch/memory/limited_work.h"
#include "libtorch/memory/managed_memory.h"
#include "libtorch/memory/outside_writer.h"
#include "libtorch/operators/operator_interceptor.h"

namespace reprise::python {
namespace {

using libtorch::HeldMemory;

// Until it is dropped, nobody moves the bytes that a step manages, and writes to them are not lost.
struct Hold {
  HeldMemory memory;
  libtorch::OutsideWriter writer;
};

HeldMemory hold(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  const py::gil_scoped_release no_gil;
  return {tensor.storage(), /*to_write=*/true};
}

struct UntilSteps {
  std::mutex mutex;
  int open = 0;
  std::vector<HeldMemory> held;
};

UntilSteps& until_steps() {
  static auto* all = new UntilSteps;
  return *all;
}

void hold_until_step_ends(const at::Tensor& tensor) {
  HeldMemory memory = hold(tensor);
  const std::lock_guard<std::mutex> lock(until_steps().mutex);
  if (until_steps().open > 0) until_steps().held.push_back(std::move(memory));
}

// In place of `function(graph, inputs)`, whose kernels read the inputs by pointer, and write to those
// in `written`. The operators that it calls itself have buffers that kernels write to as well.
py::object call_past_operators(const py::function& function, const py::object& graph,
                               const py::sequence& inputs, const std::set<std::size_t>& written) {
  std::vector<std::pair<c10::Storage, bool>> storages;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const py::object input = inputs[i];
    if (!THPVariable_Check(input.ptr())) continue;
    const at::Tensor& tensor = THPVariable_Unpack(input.ptr());
    if (tensor.has_storage()) storages.emplace_back(tensor.storage(), written.contains(i));
  }
  struct WithoutGil {
    ~WithoutGil() {
      const py::gil_scoped_release no_gil;
      held.clear();
    }
    std::vector<HeldMemory> held;
  } inputs_held;
  {
    const py::gil_scoped_release no_gil;
    for (auto& [storage, is_written] : storages) {
      // Holds what a step manages, and lets the graph free the others while it runs.
      inputs_held.held.emplace_back(std::move(storage), is_written);
    }
  }
  const c10::impl::ForceDispatchKeyGuard keys(libtorch::keys_without_interceptors());
  const libtorch::KernelMayCatch kernels;
  py::object results;
  {
    const py::gil_scoped_release no_gil;
    libtorch::run_unseen([&] {
      const py::gil_scoped_acquire gil;
      results = function(graph, inputs);
    });
  }
  kernels.rethrow();
  return results;
}

// The arguments of a call, from before the profiler looks at them to its end.
struct Arguments final : at::ObserverContext {
  std::vector<std::unique_ptr<Pin>> pins;

  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      if (value.toTensor().defined() && value.toTensor().has_storage()) {
        pins.push_back(std::make_unique<Pin>(value.toTensor()));
      }
    } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
      for (const c10::IValue& each : value.toListRef()) add(each);
    }
  }
};

std::unique_ptr<at::ObserverContext> before_profiler(const at::RecordFunction& function) {
  if (!libtorch::works_for_a_limit()) return nullptr;
  auto arguments = std::make_unique<Arguments>();
  try {
    for (const c10::IValue& value : function.inputs()) arguments->add(value);
  } catch (const Error&) {
    // The operator will say it.
  }
  return arguments;
}

// The newest results of each thread are kept: an observer reads them after the operator, when they
// may be dropped.
struct LastResults {
  std::mutex mutex;
  std::map<std::thread::id, std::vector<std::unique_ptr<Pin>>> pins;

  void replace(std::vector<std::unique_ptr<Pin>> newest) {
    const std::lock_guard<std::mutex> lock(mutex);
    pins[std::this_thread::get_id()].swap(newest);
  }
  void clear() {
    decltype(pins) last;
    const std::lock_guard<std::mutex> lock(mutex);
    last.swap(pins);
  }
};

LastResults& last_results() {
  static auto* results = new LastResults;
  return *results;
}

void after_operator(const at::RecordFunction& function, at::ObserverContext* /*before*/) {
  if (!libtorch::works_for_a_limit()) return;
  Arguments results;
  try {
    for (const c10::IValue& value : function.outputs()) results.add(value);
  } catch (const Error&) {
    // Whoever reads it next will say it.
  }
  last_results().replace(std::move(results.pins));
}

// Callbacks of the process run in the order in which they were added, and before those of a thread. So
// this one is there before anybody's, and off unless somebody reads.
class Watch {
 public:
  explicit Watch(const at::RecordFunctionCallback& callback)
      : handle_(at::addGlobalCallback(callback)) {
    at::disableCallback(handle_);
  }

  void want(bool wanted) {
    if (wanted && wanted_++ == 0) at::reenableCallback(handle_);
    if (!wanted && wanted_ > 0 && --wanted_ == 0) {
      at::disableCallback(handle_);
      last_results().clear();
    }
  }

 private:
  at::CallbackHandle handle_;
  int wanted_ = 0;  // under the interpreter's lock
};

}  // namespace

void step_begins() {
  const std::lock_guard<std::mutex> lock(until_steps().mutex);
  ++until_steps().open;
}

void step_ends() {
  std::vector<HeldMemory> held;
  last_results().clear();
  const std::lock_guard<std::mutex> lock(until_steps().mutex);
  if (--until_steps().open == 0) held.swap(until_steps().held);
}

void bind_access(py::module_& module) {
  py::class_<Hold>(module, "Hold", "Bytes that stay in place until this is dropped.");
  module.def("is_in_step", &libtorch::works_for_a_limit, "Whether a step is open for this thread.");
  module.def(
      "hold",
      [](const at::Tensor& tensor, bool is_its_storages, bool writes_on) {
        auto result = std::make_unique<Hold>();
        if (writes_on && tensor.has_storage()) {
          result->writer = libtorch::OutsideWriter(tensor.storage());
        }
        if (libtorch::works_for_a_limit()) result->memory = hold(tensor);
        if (is_its_storages) result->memory.let_storage_die();
        return result;
      },
      py::arg("tensor"), py::arg("is_its_storages") = false, py::arg("writes_on") = false,
      "`is_its_storages`: the storage's object has it, and keeps nothing alive by it. `writes_on`: the\n"
      "holder may write at any time, so that what is computed meanwhile is not dropped, also in steps\n"
      "that begin later.");
  module.def(
      "unseen",
      [](const py::function& function, const py::args& arguments) {
        const c10::impl::ForceDispatchKeyGuard keys(libtorch::keys_without_interceptors());
        return function(*arguments);
      },
      py::arg("function"), "Calls it with operators that steps do not see.");
  module.def("call_past_operators", &call_past_operators, py::arg("function"), py::arg("graph"),
             py::arg("inputs"), py::arg("written"));
  module.def(
      "is_in_region", [] { return is_checkpointing() || is_recomputing(); },
      "Whether a region's function runs on this thread.");
  module.def("hold_until_step_ends", &hold_until_step_ends, py::arg("tensor"));
  // All scopes: a node of backward has its gradients for arguments.
  static auto* const profilers =
      new Watch(at::RecordFunctionCallback(&before_profiler).needsInputs(true));
  static auto* const traces =
      new Watch(at::RecordFunctionCallback(&before_profiler, &after_operator)
                    .needsInputs(true)
                    .needsOutputs(true));
  module.def(
      "watch_profiler", [](bool watch) { profilers->want(watch); }, py::arg("watch"),
      "While a profiler runs, gives operators their arguments before it reads them.");
  module.def(
      "watch_trace", [](bool watch) { traces->want(watch); }, py::arg("watch"),
      "The same for an execution trace, which reads results as well.");
}

}  // namespace reprise::python
