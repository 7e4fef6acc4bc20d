// The meter of bytes, and pins, from Python.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <pybind11/pybind11.h>
#include <reprise/budget.h>
#include <reprise/detail/freed_blocks.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <torch/csrc/utils/pybind.h>

#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"

namespace reprise::python {
namespace {

// Throws UsageError for "60%".
void refuse_share(const std::string& text, std::string_view name) {
  double percent = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc() || std::string_view(rest, end) != "%") return;
  throw UsageError(
      std::string(name) + " is '" + text +
      "', and this call knows no step to take a share of; give bytes, such as \"8GiB\". "
      "MemoryBudget.fraction_of_device(" +
      py::repr(py::float_(percent / 100)).cast<std::string>() +
      ") takes a share of the device's bytes. `reprise run --budget " + text +
      "` and reprise.compile(memory_budget=\"" + text + "\") take a share of a step");
}

}  // namespace

Bytes bytes_of(const py::handle& value, std::string_view name) {
  if (py::isinstance<py::str>(value)) {
    const auto text = value.cast<std::string>();
    refuse_share(text, name);
    return parse_bytes(text);
  }
  if (PyIndex_Check(value.ptr()) != 0 && !py::isinstance<py::bool_>(value)) {
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!number) throw py::error_already_set();
    return Bytes(option_as<std::int64_t>(number, name, "at most 2**63 - 1 bytes"));
  }
  throw UsageError(std::string(name) + " is " + py::repr(value).cast<std::string>() +
                   "; give an int of bytes, or a str such as \"8GiB\" or \"400MB\"");
}

c10::Device default_device() {
  const auto accelerator = at::accelerator::getAccelerator();
  // Without a GPU, tensors that are fake (torch.compile) make a LibTorch for CUDA count one.
  const bool is_there = accelerator && (*accelerator != c10::kCUDA || at::hasCUDA()) &&
                        at::accelerator::deviceCount() > 0;
  return is_there ? c10::Device(*accelerator) : c10::Device(c10::kCPU);
}

c10::Device device_of(const py::handle& value) {
  if (value.is_none()) return default_device();
  if (py::isinstance<py::str>(value)) return c10::Device(value.cast<std::string>());
  return option_as<c10::Device>(value, "the device",
                                "a torch.device or its name, such as \"cuda:0\"");
}

namespace {

// Frozen when its `with` block ends.
class Scope {
 public:
  explicit Scope(c10::Device device) : device_(device) { open(); }

  void open() {
    scope_.emplace(device_);
    start_ = scope_->live_at_start();
  }
  void close() {
    if (scope_) peak_ = scope_->peak();
    scope_.reset();
  }
  std::int64_t live_at_start() const { return start_.count; }
  std::int64_t peak() const { return (scope_ ? scope_->peak() : peak_).count; }
  c10::Device device() const { return device_; }

 private:
  const c10::Device device_;
  std::optional<PeakScope> scope_;
  Bytes start_, peak_;
};

// Released by hand, by `with`, or when Python drops it.
class HeldPin {
 public:
  explicit HeldPin(const at::Tensor& tensor) {
    const py::gil_scoped_release no_gil;
    pin_.emplace(tensor);
  }
  ~HeldPin() { release(); }
  HeldPin(const HeldPin&) = delete;
  HeldPin& operator=(const HeldPin&) = delete;
  void release() {
    const py::gil_scoped_release no_gil;
    pin_.reset();
  }
  bool holds() const { return pin_.has_value(); }

 private:
  std::optional<Pin> pin_;
};

}  // namespace

void bind_memory(py::module_& module) {
  const auto bind = [&](const char* name, auto function, const char* doc) {
    module.def(
        name, [function](const py::object& device) { return function(device_of(device)); },
        py::arg("device") = py::none(), doc);
  };
  bind(
      "live_bytes", [](c10::Device device) { return live_bytes(device).count; },
      "Bytes that the device's allocator has handed out and not got back.\n\n"
      "device: None: the machine's accelerator, where it has one, else the CPU.\n"
      "On the CPU, tensors allocated before the package was imported do not count.");
  bind(
      "peak_bytes", [](c10::Device device) { return peak_bytes(device).count; },
      "The most bytes that were live at once since the process began to count.");
  module.def("default_device", &default_device,
             "The machine's accelerator, where it has one, else the CPU.");
  bind("allocation_count", &allocation_count,
       "The number of allocations that the device's allocator has served.");

  module.def(
      "parse_bytes", [](const std::string& text) { return parse_bytes(text).count; },
      py::arg("text"),
      "The bytes that \"400MB\", \"1.5 GiB\" or \"4096\" name. Raises UsageError for any other text.");
  module.def(
      "format_bytes", [](std::int64_t count) { return to_string(Bytes(count)); }, py::arg("count"),
      "\"512 B\", \"53.6 MB\", \"1.2 GB\": decimal units.");

  py::class_<Scope>(
      module, "PeakScope",
      "Measures the most bytes that are live at once, whichever thread allocates.\n\n"
      "It measures from its construction, or from the `with` that it is used in, to the end of that\n"
      "block, or to now.\n\n"
      "    with reprise.PeakScope() as scope:\n"
      "        model(x).sum().backward()\n"
      "    print(scope.peak_above_start)")
      .def(py::init(
               [](const py::object& device) { return std::make_unique<Scope>(device_of(device)); }),
           py::arg("device") = py::none())
      .def(
          "__enter__",
          [](Scope& scope) -> Scope& {
            scope.open();
            return scope;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](Scope& scope, const py::args&) { scope.close(); })
      .def_property_readonly("live_at_start", &Scope::live_at_start, "Bytes.")
      .def_property_readonly("peak", &Scope::peak, "The most bytes live at once.")
      .def_property_readonly(
          "peak_above_start",
          [](const Scope& scope) { return scope.peak() - scope.live_at_start(); },
          "peak - live_at_start: the bytes that the measured work needed on top of those live before.")
      .def("__repr__", [](const Scope& scope) {
        return "PeakScope(peak=" + std::to_string(scope.peak()) +
               ", peak_above_start=" + std::to_string(scope.peak() - scope.live_at_start()) +
               ", device='" + scope.device().str() + "')";
      });

  py::class_<detail::FreedBlocksUse>(
      module, "_FreedBlocksUse",
      "While one lives, the blocks that a thread freed last serve its next allocations of their\n"
      "sizes, as in a step of a budget.")
      .def(py::init());

  py::class_<HeldPin>(
      module, "Pin",
      "Keeps the bytes of a tensor's storage in place until it is released or dropped.\n\n"
      "Pointers into them then stay good for reading. It restores dropped bytes first, has no effect\n"
      "outside of steps, and may outlive the step. Also a context manager.")
      .def(py::init<const at::Tensor&>(), py::arg("tensor"))
      .def("release", &HeldPin::release,
           "Lets the budget drop the bytes again. A second call does nothing.")
      .def(
          "__enter__", [](HeldPin& pin) -> HeldPin& { return pin; },
          py::return_value_policy::reference)
      .def("__exit__", [](HeldPin& pin, const py::args&) { pin.release(); })
      .def("__repr__", [](const HeldPin& pin) {
        return pin.holds() ? "<Pin: holds the bytes>" : "<Pin: released>";
      });
}

}  // namespace reprise::python
