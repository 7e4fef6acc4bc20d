// Costs nothing where nobody observes: the tape asks before it calls.
#include "tape/observation.h"

#include <reprise/memory.h>

#include <algorithm>
#include <string>

#include "core/clock.h"
#include "core/ticks.h"
#include "libtorch/operators/operator_interceptor.h"
#include "libtorch/operators/recorded_call.h"
#include "tape/tape.h"

namespace reprise::tape {

namespace {

using Memory = BudgetObserver::Memory;

Memory memory_of(const Cell& cell) {
  return {libtorch::ManagedMemory::number_of(cell),
          Bytes(static_cast<std::int64_t>(cell.storage->nbytes()))};
}

// The tape's own seconds are counted in ticks of about known length, which is enough to compare
// them with one another. Traces have them beside a clock's.
double of_the_clock(double seconds) {
  static const double kScale = [] {
    const std::uint64_t start = ticks();
    const Stopwatch watch;
    while (watch.elapsed().count() < 2e-3) {
    }
    const double passed = watch.elapsed().count();
    return passed / (static_cast<double>(ticks() - start) / (kTicksPerMicrosecond * 1e6));
  }();
  return seconds * kScale;
}

std::string name_of(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

}  // namespace

ObservedCall::ObservedCall(const Tape& tape, const libtorch::OperatorCall& call) : tape_(tape) {
  std::int16_t slot = 0;
  libtorch::visit_arguments(call.arguments(), [&](const at::Tensor& tensor, std::size_t, int) {
    if (!tensor.defined()) return;
    const std::int16_t mine = slot++;
    if (!tape_.manages(tensor)) return;
    const Cell* const cell = Tape::cell_of(tensor);
    if (cell == nullptr) return;
    arguments_.push_back(memory_of(*cell));
    slots_.push_back(mine);
  });
}

void ObservedCall::tell(BudgetObserver& observer, const libtorch::OperatorCall& call,
                        std::span<const std::int16_t> written, double seconds) const {
  c10::SmallVector<std::size_t, 2> changed;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (std::ranges::count(written, slots_[i]) != 0) changed.push_back(i);
  }
  c10::SmallVector<Memory, 2> results;
  libtorch::visit_arguments(call.results(), [&](const at::Tensor& tensor, std::size_t, int) {
    if (!tensor.defined() || !tape_.manages(tensor)) return;
    const Cell* const cell = Tape::cell_of(tensor);
    if (cell == nullptr) return;
    const Memory made = memory_of(*cell);
    const auto same = [&](const Memory& other) { return other.id == made.id; };
    if (std::ranges::none_of(arguments_, same) && std::ranges::none_of(results, same)) {
      results.push_back(made);
    }
  });
  const std::string name = name_of(call.schema());
  const bool is_on_device = !tape_.device().is_cpu();
  observer.recorded({.name = name,
                     .arguments = {arguments_.data(), arguments_.size()},
                     .written = {changed.data(), changed.size()},
                     .results = {results.data(), results.size()},
                     .time = Seconds(is_on_device ? seconds : of_the_clock(seconds)),
                     .live = live_bytes(tape_.device())});
}

void tell_dropped(BudgetObserver& observer, const Tape& tape, const Value& value) {
  const std::string maker = value.producer->call.name();
  observer.dropped({.maker = maker, .bytes = Bytes(value.size), .live = live_bytes(tape.device())});
}

void tell_spent(BudgetObserver& observer, const Tape& tape, const Value& value) {
  const std::string maker = value.producer->call.name();
  observer.spent({.maker = maker, .bytes = Bytes(value.size), .live = live_bytes(tape.device())});
}

void tell_restored(BudgetObserver& observer, const Tape& tape, const Value& value) {
  const std::string maker = value.producer->call.name();
  observer.restored(
      {.maker = maker, .bytes = Bytes(value.size), .live = live_bytes(tape.device())});
}

void tell_replayed(BudgetObserver& observer, const Tape& tape, const Producer& producer,
                   double seconds) {
  const std::string name = producer.call.name();
  observer.replayed({.name = name, .time = Seconds(seconds), .live = live_bytes(tape.device())});
}

void tell_released(BudgetObserver& observer, const Cell& cell) {
  observer.released(memory_of(cell));
}

}  // namespace reprise::tape
