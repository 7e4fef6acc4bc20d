// What a tape does for plans: numbers values, finds the plan of the step, carries out what it says,
// and notes what a plan for the next step is made from.
#include "tape/following.h"

#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <utility>

#include "libtorch/memory/counting_allocator.h"
#include "libtorch/memory/memory_limit.h"
#include "tape/tape.h"

namespace reprise::tape {

using plan::StepScript;

CallMeter::CallMeter(Tape& tape, std::span<Value* const> pinned)
    : tape_(tape),
      peak_(std::in_place, tape.device()),
      start_(peak_->live_at_start().count),
      beside_(start_ - tape.following().droppable_bytes),
      beside_values_(beside_ - tape.following().droppable_slack - tape.packed_bytes()),
      dropped_(tape.bytes_given_up()) {
  for (std::size_t i = 0; i < pinned.size(); ++i) {
    const Value& value = *pinned[i];
    const auto before = pinned.first(i);
    if (value.is_in_index() || !tape.may_drop(value)) continue;
    if (std::ranges::count(before, &value) != 0) continue;
    beside_ -= value.size;
    beside_values_ -= value.size + value.slack;
  }
  tape_.meters.push_back(this);
}

CallMeter::~CallMeter() {
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  std::erase(tape_.meters, this);
}

std::int64_t CallMeter::level() const {
  return std::max(highest_, peak_->peak().count - start_ + tape_.bytes_given_up() - dropped_);
}

void CallMeter::before_drop() {
  highest_ = level();
  peak_.emplace(tape_.device());
}

void CallMeter::tell(CallNote& note) const {
  note.beside = beside_;
  note.taken = level();
  note.beside_values = beside_values_;
}

std::int64_t Tape::bytes_given_up() const {
  return report.dropped_bytes.count + report.packed_bytes.count + report.parked_bytes.count;
}

void Tape::number(Value& value) {
  if (value.number != kNoNumber) return;
  value.number = static_cast<plan::ValueNumber>(following_.values.size());
  following_.values.push_back(&value);
}

bool Tape::is_told(const Value& value) const {
  return (value.producer != nullptr || value.stays_told) && value.size >= options_.min_bytes.count;
}

bool Tape::reads_told(std::span<Value* const> read) const {
  return std::ranges::any_of(read, [this](const Value* value) { return is_told(*value); });
}

std::size_t Tape::begin_call(std::uint64_t key, std::span<Value* const> read) {
  Following& f = following_;
  f.prefix.add(key);
  const std::size_t call = f.calls++;
  if (f.record && f.record->calls.size() != call) f.record.reset();
  for (Value* value : read) {
    if (!is_told(*value)) continue;
    number(*value);
    f.prefix.add(value->number);
    if (f.record) f.record->reads.push_back(value->number);
  }
  if (!f.is_lost && (f.script == nullptr || call >= f.script->calls() ||
                     f.script->prefixes[call] != f.prefix.value())) {
    follow(f.learning->planned(call, f.prefix.value()));
  }
  if (f.script == nullptr) return call;
  report.followed = ++f.followed;
  carry_out(f.script->before(call));
  return call;
}

void Tape::end_call(std::size_t call, const CallNote& note) {
  Following& f = following_;
  if (f.record && f.record->calls.size() == call) {
    plan::StepRecord& record = *f.record;
    const std::uint32_t before = record.calls.empty() ? 0 : record.calls.back().makes_end;
    std::int64_t taken = note.taken;
    for (std::size_t i = before; i < record.makes.size(); ++i) taken -= record.makes[i].bytes;
    record.calls.push_back({.prefix = f.prefix.value(),
                            .nanoseconds = static_cast<std::int64_t>(note.seconds * 1e9),
                            .again_nanoseconds = static_cast<std::int64_t>(note.again * 1e9),
                            .beside = note.beside + std::max<std::int64_t>(taken, 0),
                            .reads_end = static_cast<std::uint32_t>(record.reads.size()),
                            .makes_end = static_cast<std::uint32_t>(record.makes.size())});
    if (side_ != nullptr) f.on_device.emplace_back(note.signature, note.bytes);
  }
  if (f.script != nullptr && f.calls == call + 1) carry_out(f.script->after(call));
}

// What cannot be made again now is left to whoever reads it, as without a plan: the operator at
// hand may not need it, or not that much room.
void Tape::carry_out(std::span<const StepScript::Action> actions) {
  try {
    for (const StepScript::Action& action : actions) act(action);
  } catch (const std::exception&) {
    follow(nullptr);
  }
}

void Tape::number_results(const Producer& producer) {
  Following& f = following_;
  if (!f.is_on()) return;
  for (const Producer::Output& output : producer.outputs) {
    Value& value = *output.value;
    if (!is_told(value)) continue;
    number(value);
    if (!f.record || !may_drop(value)) continue;
    f.made_at.resize(f.values.size(), 0);
    f.made_at[value.number] = static_cast<std::uint32_t>(f.record->makes.size());
    const double packing = costs_.seconds_to_pack(value.size);
    const bool is_packed = value.kind_bit != 0 && packing < seconds_to_make(value);
    f.record->makes.push_back({.value = value.number,
                               .bytes = value.size,
                               .return_nanoseconds = is_packed ? std::llround(packing * 1e9) : -1});
  }
}

// From now on no plan can drop it.
void Tape::note_fixed(const Value& value) {
  Following& f = following_;
  if (!f.record || value.number >= f.made_at.size()) return;
  const std::uint32_t at = f.made_at[value.number];
  if (at >= f.record->makes.size() || f.record->makes[at].value != value.number) return;
  auto& made = f.record->makes[at];
  if (!made.is_fixed()) made.fixed_at = static_cast<std::uint32_t>(f.calls);
}

void Tape::act(const StepScript::Action& action) {
  Value* const value =
      action.value < following_.values.size() ? following_.values[action.value] : nullptr;
  if (value == nullptr) return;
  switch (action.what) {
    case StepScript::Do::kMake:
      set_absence(*value, Absence::kNone);
      // Beyond the limit nothing is made before it is read.
      if (options_.on_exceeded == OnExceeded::kThrow && is_wanted(*value) && !value->has_bytes()) {
        restore(*value);
      }
      break;
    case StepScript::Do::kDrop:
      set_absence(*value, Absence::kSpare);
      break;
    case StepScript::Do::kForget:
      set_absence(*value, Absence::kForgotten);
      // No storage holds it, and no operator will be run again for it.
      if (value->cell == nullptr && value->producer != nullptr && value->pins == 0) {
        leave_index(*value);
        spare(*value);
      }
      break;
  }
}

void Tape::set_absence(Value& value, Absence absence) {
  const bool is_listed = value.is_in_index();
  if (is_listed) leave_lists(value);
  value.absence = absence;
  if (is_listed) enter_lists(value);
}

std::vector<Value*>* Tape::list_of(const Value& value) {
  if (value.absence == Absence::kForgotten) return &following_.forgotten;
  return value.absence == Absence::kSpare ? &following_.spare : nullptr;
}

void Tape::enter_lists(Value& value) {
  if (!counts_droppable()) return;
  following_.droppable_bytes += value.size;
  if (side_ == nullptr) {
    const c10::DataPtr& memory =
        value.cell != nullptr
            ? libtorch::ManagedMemory::memory_of(*value.cell)
            : value.detached.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    value.slack = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(libtorch::counted_bytes(memory) - value.size, 0, 1 << 30));
  } else {
    value.slack = static_cast<std::int32_t>(Accelerator::rounded(value.size) - value.size);
  }
  following_.droppable_slack += value.slack;
  std::vector<Value*>* const list = list_of(value);
  if (list == nullptr) return;
  value.listed_at = static_cast<std::uint32_t>(list->size());
  value.listed_as = value.absence == Absence::kForgotten ? Absence::kForgotten : Absence::kSpare;
  list->push_back(&value);
}

void Tape::leave_lists(Value& value) {
  if (!counts_droppable()) return;
  following_.droppable_bytes -= value.size;
  following_.droppable_slack -= value.slack;
  if (value.listed_as == Absence::kNone) return;
  std::vector<Value*>& list =
      value.listed_as == Absence::kForgotten ? following_.forgotten : following_.spare;
  list.back()->listed_at = value.listed_at;
  list[value.listed_at] = list.back();
  list.pop_back();
  value.listed_as = Absence::kNone;
}

// Null where the plan needs all that is there.
Value* Tape::spare_value() const {
  for (auto value = following_.forgotten.rbegin(); value != following_.forgotten.rend(); ++value) {
    if (!(*value)->is_pinned()) return *value;
  }
  constexpr std::size_t kMostLooked = 256;
  Value* best = nullptr;
  double least = 0;
  const std::size_t count = std::min(following_.spare.size(), kMostLooked);
  for (std::size_t i = 0; i < count; ++i) {
    Value* const value = following_.spare[i];
    const double each = value->own_cost / static_cast<double>(value->size);
    if (value->is_pinned() || (best != nullptr && each >= least)) continue;
    best = value;
    least = each;
  }
  return best;
}

// Another plan, or none, is followed from this call on: what it can do without here depends on all
// that it said before.
void Tape::follow(Learning::Script script) {
  Following& f = following_;
  f.is_lost = script == nullptr;
  if (script == f.script) return;
  std::vector<Absence> absences(f.values.size(), Absence::kNone);
  const auto note = [&](std::span<const StepScript::Action> actions) {
    for (const StepScript::Action& action : actions) {
      if (action.value >= absences.size()) continue;
      absences[action.value] = action.what == StepScript::Do::kMake   ? Absence::kNone
                               : action.what == StepScript::Do::kDrop ? Absence::kSpare
                                                                      : Absence::kForgotten;
    }
  };
  const std::size_t now = f.calls - 1;
  for (std::size_t call = 0; script != nullptr && call < now; ++call) {
    note(script->before(call));
    note(script->after(call));
  }
  std::vector<Value*> listed;
  for (Value* value : f.values) {
    if (value == nullptr) continue;
    if (value->is_in_index()) {
      leave_lists(*value);
      listed.push_back(value);
    }
    value->absence = absences[value->number];
  }
  f.script = std::move(script);
  for (Value* value : listed) enter_lists(*value);
}

// The program's part of the step is over.
void Tape::note_end() {
  Following& f = following_;
  // finish() that was refused may be called again.
  if (f.record) f.record->kept.clear();
  if (log) {
    log->begin_end();
    for (const Cell* cell = cells_; cell != nullptr; cell = cell->next) {
      log->held_at_end(*cell->value);
    }
    log->ended(live_bytes(device_).count - f.droppable_bytes - f.droppable_slack - packed_bytes());
  }
  if (!f.is_on() || !f.record) return;
  if (f.record->calls.size() != f.calls) return f.record.reset();
  for (const Cell* cell = cells_; cell != nullptr; cell = cell->next) {
    const Value& value = *cell->value;
    if (value.number != kNoNumber && value.producer != nullptr) {
      f.record->kept.push_back(value.number);
    }
  }
  std::ranges::sort(f.record->kept);
  f.record->beside_at_end = live_bytes(device_).count - f.droppable_bytes;
}

// A device does its work after the calls that gave it: by now more of its times have arrived than
// when the calls were noted. Those that have not are guessed, and nothing waits for them.
void Tape::note_device_times() {
  Following& f = following_;
  if (side_ == nullptr || !f.record) return;
  Accelerator& budgets = side_->of_budget;
  budgets.poll();
  for (std::size_t i = 0; i < f.on_device.size(); ++i) {
    const auto [signature, bytes] = f.on_device[i];
    const auto nanoseconds = std::llround(budgets.costs.seconds(signature, bytes) * 1e9);
    f.record->calls[i].nanoseconds = f.record->calls[i].again_nanoseconds = nanoseconds;
  }
}

Learning::End Tape::take_end() {
  Following& f = following_;
  note_device_times();
  return {.hash = f.prefix.value(),
          .calls = f.calls,
          .followed = f.followed,
          .dropped_any = report.dropped + report.parked + report.packed > 0,
          .was_followed = f.script != nullptr && f.calls == f.script->calls(),
          .record = std::exchange(f.record, std::nullopt)};
}

}  // namespace reprise::tape
