// A step whose saved tensors go to a disk and come back: as long as the longer of computing and
// moving them takes, in the memory of one block.
//
// What moving takes at least is the bytes that the step wrote and read, divided by what the disk
// does in the same minute, with as many threads and the same blocks. Two models: transformer
// blocks, where computing takes longer, and a chain of elementwise operators, where moving does.
// Times of steps are elapsed time, for the disk's is no processor's time, less what the calling
// thread waited for a processor that others had: on an idle machine nothing.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <reprise/memory.h>
#include <reprise/offload.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "benches.h"
#include "blocks.h"
#include "core/clock.h"
#include "core/statistics.h"
#include "store/block_file.h"
#include "store/block_transfer.h"

namespace reprise::bench {
namespace {

constexpr const char* kOffloadDisk = "offload_disk";

// A model as a row of blocks.
struct Stack {
  std::string name;
  std::vector<std::function<at::Tensor(const at::Tensor&)>> blocks;
  std::vector<at::Tensor> parameters;
  at::Tensor input;
  // Either way: a part of a block's activations.
  Bytes on_its_way;

  at::Tensor forward() const {
    at::Tensor y = input;
    for (const auto& block : blocks) y = block(y);
    return y.sum();
  }
  void drop_gradients() {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
  std::int64_t parameter_bytes() const {
    std::int64_t bytes = 0;
    for (const at::Tensor& parameter : parameters)
      bytes += static_cast<std::int64_t>(parameter.nbytes());
    return bytes;
  }
  // What one block in the middle of the row leaves for backward, its result included.
  std::int64_t activation_bytes() const {
    const at::Tensor x = blocks.front()(input).detach();
    const Bytes before = live_bytes();
    const at::Tensor y = blocks.back()(x);
    return (live_bytes() - before).count;
  }
};

Stack transformer(int count) {
  auto model = std::make_shared<Model>(
      make_model(count, {.width = 512, .heads = 8, .length = 256, .batch = 4, .dropout = 0.1}));
  Stack row{.name = "transformer",
            .blocks = {},
            .parameters = model->parameters,
            .input = model->input,
            .on_its_way = MiB(24)};
  for (Block& block : model->blocks) {
    row.blocks.emplace_back(
        [block, model](const at::Tensor& x) mutable { return block->forward(x); });
  }
  return row;
}

// Operators that each save 2 MiB and cost next to nothing to compute.
Stack elementwise(int count) {
  Stack row{.name = "elementwise",
            .blocks = {},
            .parameters = {},
            .input = at::randn({512, 1024}),
            .on_its_way = MiB(20)};
  for (int i = 0; i < count; ++i) {
    at::Tensor weight = at::ones({1024}).requires_grad_(true);
    row.parameters.push_back(weight);
    row.blocks.emplace_back([weight](const at::Tensor& x) {
      at::Tensor y = x * weight;
      for (int j = 0; j < 16; ++j) y = y.sigmoid();
      return y;
    });
  }
  return row;
}

// A disk other than that of temporary files is measured by naming a folder on it.
DiskStoreOptions disk(const Stack& row) {
  const char* folder = std::getenv("REPRISE_BENCH_FOLDER");
  DiskStoreOptions options;
  options.folder = folder != nullptr ? folder : std::filesystem::temp_directory_path().string();
  options.in_flight = row.on_its_way;
  options.read_ahead = row.on_its_way;
  return options;
}

// See the head of this file.
class StepWatch {
 public:
  double seconds() const { return watch_.elapsed().count() - (queued() - queued_before_); }

 private:
  // Seconds for which the thread was ready to run and did not, as the kernel counts them.
  static double queued() {
    std::ifstream file("/proc/thread-self/schedstat");
    double running = 0, waiting = 0;
    file >> running >> waiting;
    return waiting / 1e9;
  }

  double queued_before_ = queued();
  Stopwatch watch_;
};

// Seconds that the disk takes to write (or read) `bytes`, as the store would.
double time_disk(store::BlockFile& file, const DiskStoreOptions& options, std::int64_t bytes,
                 bool write) {
  const Stopwatch watch;
  std::vector<std::thread> threads;
  for (int i = 0; i < options.workers; ++i) {
    threads.emplace_back([&, i] {
      const store::BlockBuffer buffer(options.block.count);
      const auto block = static_cast<std::size_t>(options.block.count);
      std::fill_n(buffer.data(), block, std::byte{1});
      for (std::int64_t at = i * options.block.count; at < bytes;
           at += options.workers * options.block.count) {
        write ? file.write(buffer.data(), block, at) : file.read(buffer.data(), block, at);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return watch.elapsed().count();
}

double time_step(Stack& row, const std::shared_ptr<Store>& store) {
  const StepWatch watch;
  {
    at::Tensor loss;
    {
      std::optional<OffloadScope> scope;
      if (store != nullptr) scope.emplace(store);
      loss = row.forward();
    }
    loss.backward();
  }
  const double seconds = watch.seconds();
  row.drop_gradients();
  return seconds;
}

void report(Session& session, const std::string& name, const std::vector<double>& values,
            const std::string& unit, const Bar& bar = {}) {
  session.report(make_figure(kOffloadDisk, name, unit, values, {}, bar));
}

void measure_peak(Session& session, Stack& row) {
  const std::int64_t activations = row.activation_bytes();
  const std::int64_t parameters = row.parameter_bytes();
  const auto peak_with = [&](const std::shared_ptr<Store>& store) {
    time_step(row, store);
    const PeakScope scope;
    time_step(row, store);
    // The parameters were there before.
    return static_cast<double>(scope.peak_above_start().count + parameters);
  };
  const double plain = peak_with(nullptr);
  // The store's own buffers count.
  const Bytes before = live_bytes();
  const auto store = disk_store(disk(row));
  const auto buffers = static_cast<double>((live_bytes() - before).count);
  const double ours = peak_with(store) + buffers;
  const double bound = static_cast<double>(activations + 2 * parameters);
  report(session, "block's activations, " + row.name, {static_cast<double>(activations) / 1e6},
         "MB");
  report(session, "parameters, " + row.name, {static_cast<double>(parameters) / 1e6}, "MB");
  report(session, "peak, plain, " + row.name, {plain / 1e6}, "MB");
  report(session, "peak, " + row.name, {ours / 1e6}, "MB");
  report(session, "peak ÷ (activations of a block + parameters + gradients), " + row.name,
         {ours / bound}, "×", {.at_most = 1.3});
}

void measure_time(Session& session, Stack& row) {
  const DiskStoreOptions options = disk(row);
  const auto store = disk_store(options);
  const auto file = store::open_block_file(options.folder);
  std::vector<double> plain, offloaded, writing, reading, ratios, moved;
  const int rounds = session.quick() ? 1 : 9;
  time_step(row, store);
  for (int i = -1; i < rounds; ++i) {
    const StoreStatistics before = store->statistics();
    const double step = time_step(row, store);
    store->flush();
    const StoreStatistics after = store->statistics();
    const std::int64_t written = (after.written - before.written).count;
    const std::int64_t read = (after.read - before.read).count;
    const double base = time_step(row, nullptr);
    const double write_time = time_disk(*file, options, written, /*write=*/true);
    const double read_time = time_disk(*file, options, read, /*write=*/false);
    // The first round makes room in the file.
    if (i < 0) continue;
    offloaded.push_back(step);
    plain.push_back(base);
    moved.push_back(static_cast<double>(written + read) / 1e6);
    writing.push_back(static_cast<double>(written) / 1e6 / write_time);
    reading.push_back(static_cast<double>(read) / 1e6 / read_time);
    ratios.push_back(step / std::max(base, write_time + read_time));
  }
  report(session, "step, " + row.name, offloaded, "s");
  report(session, "plain step, " + row.name, plain, "s");
  report(session, "moved, " + row.name, moved, "MB");
  report(session, "disk, writing, " + row.name, writing, "MB/s");
  report(session, "disk, reading, " + row.name, reading, "MB/s");
  report(session, "step ÷ max(plain step, moving), " + row.name, ratios, "×", {.at_most = 1.15});
}

}  // namespace

void offload_disk(Session& session) {
  for (Stack row : {transformer(6), elementwise(12)}) {
    measure_peak(session, row);
    measure_time(session, row);
  }
}

}  // namespace reprise::bench
