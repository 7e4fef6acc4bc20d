// Measures steps on an accelerator: the cost of regions and budgets, the peak against the limit,
// and the reserved bytes against the peak. It also shows whether a host store moves its values
// behind the computation. Without an accelerator it measures nothing.
//
// A step's time is elapsed time between two waits for the device; "submitting" is the part until
// the last operator was given to it. All steps of a round follow each other, so a figure compares
// steps of the same seconds.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <reprise/budget.h>
#include <reprise/checkpoint.h>
#include <reprise/memory.h>
#include <reprise/offload.h>
#include <reprise/selective.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "benches.h"
#include "benchmarks/support/race.h"
#include "blocks.h"
#include "core/clock.h"

namespace reprise::bench {
namespace {

constexpr const char* kAccelerator = "accelerator";
constexpr int kDeviceBlocks = 12;
constexpr double kShares[] = {0.75, 0.5, 0.35, 0.25};

// One model for all steps, so that what is live before a step is the same under each strategy.
using Call = std::function<at::Tensor(Block&, const at::Tensor&)>;

Step step_of(const std::shared_ptr<Model>& model, const Call& call,
             const std::shared_ptr<Store>& store = nullptr) {
  return [model, call, store] {
    at::Tensor y = model->input;
    {
      std::optional<OffloadScope> scope;
      if (store != nullptr) scope.emplace(store);
      for (Block& block : model->blocks) y = call(block, y);
    }
    y.sum().backward();
    model->drop_gradients();
  };
}

at::Tensor forward(Block& block, const at::Tensor& x) { return block->forward(x); }

struct DeviceTime {
  double seconds, submitting;
};

DeviceTime time_on_device(const Step& step, c10::Device device) {
  at::accelerator::synchronizeDevice(device.index());
  const Stopwatch watch;
  step();
  const double submitting = watch.elapsed().count();
  at::accelerator::synchronizeDevice(device.index());
  return {watch.elapsed().count(), submitting};
}

// One step of the race and what its rounds gave.
struct DeviceRunner {
  std::string name;
  Step step;
  std::vector<double> seconds = {}, submitting = {};
};

void take_turns(std::vector<DeviceRunner>& runners, c10::Device device, int rounds) {
  for (DeviceRunner& runner : runners) runner.step();
  for (int round = 0; round < rounds; ++round) {
    for (DeviceRunner& runner : runners) {
      const DeviceTime time = time_on_device(runner.step, device);
      runner.seconds.push_back(time.seconds);
      runner.submitting.push_back(time.submitting);
    }
  }
}

void report_on_device(Session& session, const std::string& name, const std::vector<double>& values,
                      const std::string& unit, const Bar& bar = {}) {
  session.report(make_figure(kAccelerator, name, unit, values, {}, bar));
}

std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> all;
  for (std::size_t i = 0; i < of.size(); ++i) all.push_back(of[i] / to[i]);
  return all;
}

// A step under a budget, and the peaks of its first and its last step.
struct Budgeted {
  std::shared_ptr<MemoryBudget> budget;
  Step step;

  Budgeted(const Step& plain, Bytes limit, c10::Device device)
      : budget(std::make_shared<MemoryBudget>(limit, BudgetOptions{.device = device})),
        step([plain, budget = budget] {
          auto managed = budget->step();
          plain();
          managed.finish();
        }) {}
  double peak_share() const {
    return static_cast<double>(budget->report().peak.count) /
           static_cast<double>(budget->limit().count);
  }
};

double reserved_bytes(c10::Device device) {
  const auto stats = at::accelerator::getDeviceStats(device.index());
  return static_cast<double>(stats.reserved_bytes[0].peak);
}

// Peak against limit in the first step and after four, and the bytes that the allocator reserves
// for them.
void measure_peaks(Session& session, const std::string& name, const Budgeted& budgeted,
                   c10::Device device) {
  at::accelerator::emptyCache();
  at::accelerator::resetPeakStats(device.index());
  budgeted.step();
  report_on_device(session, name + ", first step: peak ÷ limit", {budgeted.peak_share()}, "×");
  for (int i = 0; i < 3; ++i) budgeted.step();
  const auto peak = static_cast<double>(budgeted.budget->report().peak.count);
  report_on_device(session, name + ": peak ÷ limit", {budgeted.peak_share()}, "×",
                   {.at_most = 1.0});
  report_on_device(session, name + ": reserved ÷ peak", {reserved_bytes(device) / peak}, "×");
}

void measure_blocks(Session& session, const std::shared_ptr<Model>& model, c10::Device device) {
  const Step plain = step_of(model, forward);
  plain();
  at::accelerator::emptyCache();
  at::accelerator::resetPeakStats(device.index());
  const Bytes before = live_bytes(device);
  plain();
  const auto stats = at::accelerator::getDeviceStats(device.index());
  const auto peak = static_cast<double>(stats.allocated_bytes[0].peak);
  report_on_device(session, "plain: peak", {peak / 1e6}, "MB");
  report_on_device(session, "plain: reserved ÷ peak", {reserved_bytes(device) / peak}, "×");

  const CheckpointOptions kept{.context = selective(save_matmuls())};
  std::vector<DeviceRunner> runners = {
      {"plain", plain},
      {"every block",
       step_of(model, [](Block& block, const at::Tensor& x) { return checkpoint(block, x); })},
      {"matrix products kept", step_of(model, [kept](Block& block, const at::Tensor& x) {
         return checkpoint(kept, block, x);
       })}};
  const Budgeted never(plain, Bytes(static_cast<std::int64_t>(2 * peak)), device);
  runners.push_back({"a budget that never binds", never.step});
  std::vector<Budgeted> budgets;
  for (const double share : kShares) {
    const double above = share * (peak - static_cast<double>(before.count));
    budgets.emplace_back(plain, before + Bytes(static_cast<std::int64_t>(above)), device);
    const std::string name = fmt::format("budget of {:.0f} %", 100 * share);
    try {
      measure_peaks(session, name, budgets.back(), device);
    } catch (const BudgetError& error) {
      std::cerr << "accelerator: " << name << ": " << error.what() << "\n";
      model->drop_gradients();
      continue;
    }
    runners.push_back({name, budgets.back().step});
  }
  take_turns(runners, device, session.quick() ? 3 : 15);
  const DeviceRunner& base = runners.front();
  report_on_device(session, "plain", base.seconds, "s");
  report_on_device(session, "plain, submitting", ratios(base.submitting, base.seconds), "×plain");
  for (const DeviceRunner& runner : runners) {
    if (&runner == &base) continue;
    const bool never_binds = runner.name == "a budget that never binds";
    report_on_device(session, runner.name, ratios(runner.seconds, base.seconds), "×plain",
                     never_binds ? Bar{.at_most = 1.02} : Bar{});
    report_on_device(session, runner.name + ", submitting", ratios(runner.submitting, base.seconds),
                     "×plain");
  }
}

// Seconds that it takes to copy so many bytes to pinned host memory, or from there.
double time_copy(std::int64_t bytes, c10::Device device, bool to_host) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 26;
  const auto bytes_of = at::TensorOptions().dtype(at::kByte);
  const at::Tensor host = at::empty({kPiece}, bytes_of.pinned_memory(true));
  const at::Tensor there = at::empty({kPiece}, bytes_of.device(device));
  const Step copy = [&] {
    for (std::int64_t at = 0; at < bytes; at += kPiece) {
      const auto size = std::min(kPiece, bytes - at);
      const at::Tensor from = (to_host ? there : host).narrow(0, 0, size);
      (to_host ? host : there).narrow(0, 0, size).copy_(from, /*non_blocking=*/true);
    }
  };
  copy();
  return time_on_device(copy, device).seconds;
}

void measure_offload(Session& session, const std::shared_ptr<Model>& model, c10::Device device) {
  const auto store = host_store();
  const Step plain = step_of(model, forward);
  const Step offloaded = step_of(model, forward, store);
  plain(), offloaded(), offloaded();
  std::vector<double> moved, moving, all;
  for (int i = 0; i < (session.quick() ? 2 : 9); ++i) {
    const StoreStatistics before = store->statistics();
    const double step = time_on_device(offloaded, device).seconds;
    const StoreStatistics after = store->statistics();
    const double computing = time_on_device(plain, device).seconds;
    const auto written = (after.written - before.written).count;
    const auto read = (after.read - before.read).count;
    moving.push_back(time_copy(written, device, true) + time_copy(read, device, false));
    moved.push_back(static_cast<double>(written + read) / 1e6);
    all.push_back(step / std::max(computing, moving.back()));
  }
  report_on_device(session, "host store: moved", moved, "MB");
  report_on_device(session, "host store: moving alone", moving, "s");
  report_on_device(session, "host store: step ÷ max(plain step, moving)", all, "×",
                   {.at_most = 1.03});
}

}  // namespace

void accelerator(Session& session) {
  const auto type = at::accelerator::getAccelerator();
  if (!type || at::accelerator::deviceCount() == 0) {
    std::cerr << "accelerator: there is no accelerator here, so nothing is measured\n";
    return;
  }
  const c10::Device device = session.device().is_cpu() ? c10::Device(*type, 0) : session.device();
  const BlockShape small = {.width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};
  const BlockShape large = {.width = 1024, .heads = 16, .length = 512, .batch = 16, .dropout = 0.1};
  const auto model =
      std::make_shared<Model>(make_model(kDeviceBlocks, session.quick() ? small : large, device));
  measure_blocks(session, model, device);
  measure_offload(session, model, device);
}

}  // namespace reprise::bench
