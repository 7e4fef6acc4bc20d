#include "estimate/account.h"

#include <c10/util/StringUtil.h>
#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/rounding.h"
#include "plan/trace/trace_builder.h"

namespace reprise::estimate {

namespace {

// glibc's chunks: a word of their own before them, in steps of two words.
constexpr std::int64_t kChunk = 16, kWord = 8, kLeastChunk = 32;
// CUDA's caching allocator: kMinBlockSize.
constexpr std::int64_t kBlock = 512;

bool is_divided(Timeline::Role role) {
  return role == Timeline::Role::kParameter || role == Timeline::Role::kGradient;
}

bool was_there(Timeline::Role role) {
  return role != Timeline::Role::kMade && role != Timeline::Role::kGradient;
}

}  // namespace

std::int64_t handed_out(std::int64_t bytes, c10::DeviceType device) {
  if (bytes == 0) return 0;
  if (device != c10::kCPU) return rounded_up(bytes, kBlock);
  return std::max(rounded_up(bytes + kWord, kChunk), kLeastChunk) - kWord;
}

Account::Account(const Timeline& timeline, const EstimateOptions& options,
                 std::int64_t optimizer_state)
    : timeline_(timeline), options_(options), optimizer_state_(optimizer_state) {
  for (const Timeline::Memory& each : timeline.memories()) {
    const std::int64_t parts = is_divided(each.role) ? options.shards : 1;
    sizes_.push_back(handed_out(part_of(each.bytes, parts), options.device));
  }
}

std::int64_t Account::sum_of(Timeline::Role role) const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (timeline_.memories()[i].role == role) sum += sizes_[i];
  }
  return sum;
}

template <class See>
void Account::walk(See&& see) const {
  std::int64_t live = optimizer_state_;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (was_there(timeline_.memories()[i].role)) live += sizes_[i];
  }
  for (const Timeline::Event& event : timeline_.events()) {
    std::int64_t at_once = live;
    if (event.what == What::kCall) {
      const Timeline::Call& call = timeline_.calls()[static_cast<std::size_t>(event.subject)];
      for (const Timeline::Number each : call.results) live += size(each);
      at_once = live + call.workspace;
    } else if (event.what == What::kDeath) {
      live -= size(event.subject);
    }
    see(event, at_once);
  }
}

void Account::add_kept(Estimate& estimate) const {
  std::vector<bool> is_live(sizes_.size());
  std::vector<std::int64_t> by_kind(timeline_.kinds().size());
  for (const Timeline::Event& event : timeline_.events()) {
    if (event.what == What::kEndOfForward) break;
    if (event.what == What::kDeath) {
      is_live[static_cast<std::size_t>(event.subject)] = false;
      continue;
    }
    const Timeline::Call& call = timeline_.calls()[static_cast<std::size_t>(event.subject)];
    for (const Timeline::Number each : call.results) is_live[static_cast<std::size_t>(each)] = true;
  }
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (!is_live[i]) continue;
    by_kind[static_cast<std::size_t>(timeline_.memories()[i].kind)] += sizes_[i];
    estimate.activations += Bytes(sizes_[i]);
  }
  for (std::size_t i = 0; i < by_kind.size(); ++i) {
    if (by_kind[i] > 0) estimate.kept.push_back({timeline_.kinds()[i], Bytes(by_kind[i])});
  }
  std::ranges::stable_sort(estimate.kept, std::greater(),
                           [](const Estimate::Item& item) { return item.bytes; });
}

void Account::add_peak(Estimate& estimate) const {
  std::int64_t peak = -1;
  const Timeline::Event* fullest = nullptr;
  walk([&](const Timeline::Event& event, std::int64_t live) {
    if (live <= peak || event.what != What::kCall) return;
    peak = live;
    fullest = &event;
  });
  std::int64_t gradients = 0, activations = 0;
  walk([&](const Timeline::Event& event, std::int64_t) {
    if (&event > fullest || event.what == What::kEndOfForward) return;
    const auto count = [&](Timeline::Number number, std::int64_t sign) {
      const Timeline::Memory& memory = timeline_.memories()[static_cast<std::size_t>(number)];
      if (memory.role == Timeline::Role::kGradient) {
        gradients += sign * size(number);
      } else if (memory.role == Timeline::Role::kMade && memory.phase == Phase::kForward) {
        activations += sign * size(number);
      }
    };
    if (event.what == What::kDeath) return count(event.subject, -1);
    const Timeline::Call& call = timeline_.calls()[static_cast<std::size_t>(event.subject)];
    for (const Timeline::Number each : call.results) count(each, 1);
  });
  estimate.peak = Bytes(peak);
  estimate.gradients_at_peak = Bytes(gradients);
  estimate.activations_at_peak = Bytes(activations);
  estimate.temporaries_at_peak = Bytes(peak - gradients - activations) - estimate.state();
  estimate.peak_operator = timeline_.calls()[static_cast<std::size_t>(fullest->subject)].name;
}

void Account::add_costs(Estimate& estimate) const {
  for (const Timeline::Call& call : timeline_.calls()) {
    const Seconds seconds(call.seconds);
    estimate.seconds += seconds;
    estimate.flops += call.flops;
    if (call.phase == Phase::kForward) estimate.forward_seconds += seconds;
    if (call.phase != Phase::kRecomputation) continue;
    estimate.recompute_seconds += seconds;
    estimate.recomputed_flops += call.flops;
  }
  estimate.operators = std::ssize(timeline_.calls());
}

void Account::check_time() const {
  constexpr double kSecondsOfADay = 86400, kMost = plan::TraceBuilder::kMostNanoseconds * 1e-9;
  double seconds = 0;
  for (const Timeline::Call& call : timeline_.calls()) seconds += call.seconds + 1e-9;
  if (seconds < kMost) return;
  const Machine& machine = options_.machine;
  throw UsageError(c10::str("estimate_step(): the step would take ", seconds / kSecondsOfADay,
                            " days at ", machine.flops, " FLOP/s (", machine.low_precision_flops,
                            " in 16 bits) and ", machine.bandwidth, " bytes/s; it must be below ",
                            std::floor(kMost / kSecondsOfADay),
                            "; give the machine's rates (--flops, --bandwidth)"));
}

Estimate Account::estimate() const {
  check_time();
  Estimate estimate(trace_of_timeline(timeline_, sizes_, optimizer_state_));
  estimate.parameters = Bytes(sum_of(Timeline::Role::kParameter));
  estimate.buffers = Bytes(sum_of(Timeline::Role::kBuffer));
  estimate.inputs = Bytes(sum_of(Timeline::Role::kInput));
  estimate.gradients = Bytes(sum_of(Timeline::Role::kGradient));
  estimate.optimizer_state = Bytes(optimizer_state_);
  add_kept(estimate);
  add_peak(estimate);
  add_costs(estimate);
  return estimate;
}

}  // namespace reprise::estimate
