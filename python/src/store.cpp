// Stores, and the scopes that are context managers: offload() and named().
#include "store.h"

#include <pybind11/stl.h>
#include <reprise/error.h>
#include <reprise/offload.h>
#include <reprise/selective.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "record.h"
#include "scopes.h"

namespace reprise::python {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

constexpr std::array kCompressions = {"exact", "bf16", "int8", "int4"};
constexpr std::array kForms = {"uncompressed", "mask", "sparse", "bf16", "int8", "int4"};

Compression compression_of(const std::string& text) {
  for (std::size_t i = 0; i < kCompressions.size(); ++i) {
    if (text == kCompressions.at(i)) return static_cast<Compression>(i);
  }
  throw UsageError("compressed_store(): the compression is '" + text +
                   "'; it is 'exact', 'bf16', 'int8' or 'int4'");
}

class PythonCompressedStore final : public PythonStore {
 public:
  explicit PythonCompressedStore(const std::shared_ptr<CompressedStore>& store)
      : PythonStore(store) {}
  CompressedStore& store() const { return static_cast<CompressedStore&>(itself()); }
};

// Given back without the lock: the value may be on its way.
class Parked {
 public:
  explicit Parked(std::unique_ptr<ParkedTensor> parked) : parked_(std::move(parked)) {}
  Parked(Parked&&) noexcept = default;
  Parked(const Parked&) = delete;
  Parked& operator=(const Parked&) = delete;
  ~Parked() {
    without_gil([this] { parked_.reset(); });
  }
  ParkedTensor& operator*() const { return *parked_; }

 private:
  std::unique_ptr<ParkedTensor> parked_;
};

void bind_store(py::module_& module) {
  Record<StoreStatistics>(module, "StoreStatistics",
                          "What a store holds, and has moved: counts and bytes (int).\n\n"
                          "Store.statistics() returns them as of now.")
      .figure("count", &StoreStatistics::count, "Values that are parked now.")
      .figure("parked", &StoreStatistics::parked, "Their bytes.")
      .figure("waiting", &StoreStatistics::waiting,
              "The part of `parked` that has not left its original memory yet.")
      .figure("written", &StoreStatistics::written,
              "Bytes moved out of it since the store was made.")
      .figure("read", &StoreStatistics::read, "Bytes loaded since the store was made.")
      .pickled();

  py::class_<Parked>(module, "ParkedTensor", "One parked value; dropped with the object.")
      .def(
          "load", [](const Parked& parked) { return (*parked).load(); }, NoGil(),
          "The value, with the bits, sizes, strides, dtype and device of the parked tensor.\n\n"
          "Do not write to it. Raises StoreError if it cannot be loaded, and UsageError if the\n"
          "parked tensor was changed in place.")
      .def(
          "prefetch", [](const Parked& parked) { return (*parked).prefetch(); }, NoGil(),
          "Begins to fetch the value in the background; False if the store fetches no more now.")
      .def_property_readonly(
          "bytes", [](const Parked& parked) { return (*parked).bytes().count; },
          "The size of the memory that holds its elements.");

  py::class_<PythonStore>(
      module, "Store",
      "Holds values of tensors elsewhere: disk_store(), host_store(), compressed_store() and\n"
      "memory_store() make one. Any number of threads may use one.\n\n"
      "A store of your own derives from this class:\n\n"
      "    class Files(reprise.Store):\n"
      "        exact = True                  # whether get() returns the bits that put() was given; False\n"
      "        def put(self, flat): ...      # keeps a row of elements, and returns what it is found by\n"
      "        def get(self, kept): ...      # the row, for what put() returned\n"
      "        def drop(self, kept): ...     # optional: the value is not needed again\n"
      "        def prefetch(self, kept): ... # optional: begins to fetch; False if no more is fetched now\n"
      "        def takes(self, device): ...  # optional: whether it takes tensors of a device; the CPU's\n"
      "        def flush(self): ...          # optional: waits until nothing moves\n\n"
      "put() is given a contiguous tensor of one dimension, not empty, without history. It may keep the\n"
      "tensor itself, but not write to it. get() returns a contiguous tensor of the same size, dtype and\n"
      "device, any number of times. Both may run on any thread, several at once, each under the\n"
      "interpreter's lock and with gradients off. What they raise leaves the operator that saves, or\n"
      "backward(), as it is; what drop() raises goes to sys.unraisablehook. A MemoryBudget cannot park\n"
      "in such a store, since its tape works under a lock; offload() can.")
      .def(py::init<>())
      .def(
          "park",
          [](const PythonStore& it, const at::Tensor& tensor) {
            return Parked(it.get()->park(tensor));
          },
          py::arg("tensor"), NoGil(),
          "Parks the value of a tensor, which must not be changed in place from then on.\n\n"
          "Raises UsageError for a tensor that the store cannot take, and StoreError if there is no\n"
          "room, or for an earlier failure.")
      .def(
          "takes",
          [](const PythonStore& it, const py::object& device) {
            return it.itself().takes(device_of(device));
          },
          py::arg("device"), "Whether tensors of that device can be parked.")
      .def(
          "flush", [](const PythonStore& it) { it.itself().flush(); }, NoGil(),
          "Waits until no value is moving. Raises StoreError for one that could not be parked.")
      .def(
          "statistics", [](const PythonStore& it) { return it.itself().statistics(); },
          "Counts and bytes of now.")
      .def_property_readonly(
          "exact", [](const PythonStore& it) { return it.itself().exact(); },
          "Whether every loaded value has the bits of the parked one.")
      .def("__repr__", [](const PythonStore& it) { return "<" + it.get()->name() + ">"; });
}

void bind_compressed(py::module_& module) {
  Record<CompressedTotals>(module, "CompressedTotals",
                           "The values parked in one form since the store was made.")
      .figure("count", &CompressedTotals::count, "Values.")
      .figure("before", &CompressedTotals::before, "Their bytes before.")
      .figure("after", &CompressedTotals::after, "Their bytes in that form.")
      .pickled();
  Record<CompressionResult>(module, "CompressionResult", "How park_as() compressed one value.")
      .figure(
          "form",
          [](const CompressionResult& it) {
            return std::string(kForms.at(static_cast<std::size_t>(it.form)));
          },
          "\"uncompressed\", \"mask\", \"sparse\", \"bf16\", \"int8\" or \"int4\".")
      .figure("before", &CompressionResult::before, "Bytes before.")
      .figure("after", &CompressionResult::after, "Bytes after.")
      .figure("spread", &CompressionResult::spread,
              "The mean square of blocks' ranges by the mean of squares; 0 for an exact form.")
      .kept(&CompressionResult::form)
      .pickled();
  py::class_<PythonCompressedStore, PythonStore>(module, "CompressedStore",
                                                 "Keeps tensors where they are, in fewer bytes.")
      .def(
          "park_as",
          [](const PythonCompressedStore& it, const at::Tensor& tensor,
             const std::string& compression) {
            CompressionResult became;
            const Compression as = compression_of(compression);
            const py::gil_scoped_release no_gil;
            Parked parked(it.store().park_as(tensor, as, &became));
            return std::pair(std::move(parked), became);
          },
          py::arg("tensor"), py::arg("compression"),
          "park() with a compression for this tensor: a ParkedTensor and a CompressionResult.\n\n"
          "Raises UsageError if it changes more than the store's own compression.")
      .def(
          "totals",
          [](const PythonCompressedStore& it) {
            py::dict totals;
            for (std::size_t i = 0; i < kForms.size(); ++i) {
              totals[kForms.at(i)] = it.store().totals(static_cast<CompressedForm>(i));
            }
            return totals;
          },
          "A dict of CompressedTotals by form.")
      .def_property_readonly(
          "compressed",
          [](const PythonCompressedStore& it) { return it.store().compressed().count; },
          "The compressed bytes of the values that are parked now.")
      .def_property(
          "next_stream", [](const PythonCompressedStore& it) { return it.store().next_stream(); },
          [](const PythonCompressedStore& it, std::uint64_t stream) {
            it.store().set_next_stream(stream);
          },
          "The number of the next stream of random numbers, for a resumed training.");
}

void bind_factories(py::module_& module) {
  module.def(
      "memory_store", [] { return PythonStore(memory_store()); },
      "Leaves the tensors where they are: for tests, and to switch a store off.");
  module.def(
      "disk_store",
      [](const py::object& folder, const py::object& byte_cap, const py::object& in_flight,
         const py::object& read_ahead, int workers, const py::object& block) {
        DiskStoreOptions options{
            .folder = py::module_::import("os").attr("fspath")(folder).cast<std::string>()};
        if (!byte_cap.is_none()) options.byte_cap = bytes_of(byte_cap, "disk_store(): byte_cap");
        options.in_flight = bytes_of(in_flight, "disk_store(): in_flight");
        options.read_ahead = bytes_of(read_ahead, "disk_store(): read_ahead");
        options.workers = workers;
        options.block = bytes_of(block, "disk_store(): block");
        return PythonStore(disk_store(options));
      },
      py::arg("folder"), py::kw_only(), py::arg("byte_cap") = py::none(),
      py::arg("in_flight") = "64MiB", py::arg("read_ahead") = "64MiB", py::arg("workers") = 2,
      py::arg("block") = "1MiB",
      "Parks tensors of host memory in one nameless file in a folder that exists.\n\n"
      "byte_cap: the most bytes parked at a time; None: the room on the disk.\n"
      "in_flight: the most bytes that wait to be written when park() returns; 0: park() writes.\n"
      "read_ahead: the most bytes that are fetched ahead.\n"
      "workers: threads that read and write.\n"
      "block: the unit of reading and writing, a multiple of 4 KiB.\n\n"
      "A store belongs to the process that made it. Raises UsageError for options out of range, and\n"
      "StoreError if there can be no file in the folder.");
  module.def(
      "host_store",
      [](const py::object& in_flight, const py::object& read_ahead) {
        return PythonStore(
            host_store({.in_flight = bytes_of(in_flight, "host_store(): in_flight"),
                        .read_ahead = bytes_of(read_ahead, "host_store(): read_ahead")}));
      },
      py::kw_only(), py::arg("in_flight") = "256MiB", py::arg("read_ahead") = "256MiB",
      "Parks tensors of an accelerator in pinned host memory.\n\n"
      "It was tested on a simulated accelerator. Raises UsageError in a process without one.");
  module.def(
      "compressed_store",
      [](const std::string& compression, std::int64_t block, std::uint64_t seed) {
        return PythonCompressedStore(compressed_store(
            {.compression = compression_of(compression), .block = block, .seed = seed}));
      },
      py::arg("compression") = "exact", py::kw_only(), py::arg("block") = 256, py::arg("seed") = 0,
      "Keeps tensors of host memory where they are, in fewer bytes.\n\n"
      "compression: the form that may change most: 'exact' (masks and sparse values, no bit changes),\n"
      "    or lossy 'bf16', 'int8' or 'int4' (docs/compression.md).\n"
      "block: elements that share a minimum and a unit in 8 and 4 bits.\n"
      "seed: of stochastic rounding.\n\n"
      "Raises UsageError for options out of range.");
}

}  // namespace

void bind_stores(py::module_& module) {
  bind_store(module);
  bind_compressed(module);
  bind_factories(module);

  using Offload = Context<OffloadScope>;
  Offload::bind(module, "OffloadScope", "The scope that offload() makes.");
  module.def(
      "offload",
      [](const PythonStore& store, const py::object& min_bytes, const py::object& hold) {
        const OffloadOptions options{.min_bytes = bytes_of(min_bytes, "offload(): min_bytes"),
                                     .hold = bytes_of(hold, "offload(): hold")};
        return std::make_unique<Offload>("offload()", [store = store.get(), options] {
          return std::make_unique<OffloadScope>(store, options);
        });
      },
      py::arg("store"), py::kw_only(), py::arg("min_bytes") = "64KiB", py::arg("hold") = "64MiB",
      "Parks what autograd saves inside a `with` block; backward loads it, fetched ahead.\n\n"
      "    with reprise.offload(reprise.disk_store(\"/scratch\")):\n"
      "        loss = model(x)\n"
      "    loss.backward()\n\n"
      "min_bytes: smaller tensors are not parked.\n"
      "hold: the most bytes that stay loaded after a read for other saved tensors on the same memory.\n\n"
      "Parameters stay where they are, and memory that somebody else holds is read there. Gradients\n"
      "are bitwise those of the plain step if the store is exact. Scopes nest with\n"
      "torch.autograd.graph.saved_tensors_hooks: the innermost is asked. Raises UsageError for\n"
      "sizes below zero; StoreError leaves the operator that saves, or backward().");

  using Named = Context<NamedScope>;
  Named::bind(module, "Named", "The scope that named() makes.");
  module.def(
      "named",
      [](const std::string& name) {
        return std::make_unique<Named>("named()",
                                       [name] { return std::make_unique<NamedScope>(name); });
      },
      py::arg("name"),
      "Names a part of a computation in a `with` block, for estimates and error texts.\n\n"
      "Nested names form a path, joined by dots. Raises UsageError for an empty name.");
  module.def("current_path", &current_path,
             "The path in force on this thread; empty outside of any name.");
}

}  // namespace reprise::python
