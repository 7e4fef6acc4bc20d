// An operator call between its beginning and its end: the values that it has in use, the producer
// that it may become, and what it writes to. However the call ends, nothing of it stays behind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "libtorch/memory/managed_memory.h"
#include "libtorch/memory/memory_limit.h"
#include "libtorch/operators/own_draws.h"
#include "libtorch/operators/recorded_call.h"
#include "tape/accelerator.h"
#include "tape/own_time.h"
#include "tape/tape.h"
#include "tape/value.h"

namespace reprise::tape {

struct BegunCall {
  struct Write {
    at::Tensor tensor;
    std::int16_t slot;
    bool covers;
    // What it held before. Another step that this one is inside of may have renewed it meanwhile.
    const Value* old;
    bool is_statistic;
  };
  explicit BegunCall(Tape& of) : tape(of) {}
  // The call may have ended in an exception, without the lock.
  ~BegunCall() {
    if (pinned.empty() && held.empty() && producer == nullptr && !logged) return;
    const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
    log_end();
    if (!is_ended) give_up();
    unpin();
    if (producer == nullptr) return;
    // It did not get as far as the tape.
    for (const Producer::Output& output : producer->outputs) output.value->producer = nullptr;
    if (is_reader) tape.discard(producer.release());
    producer.reset();
  }
  void pin(Cell& cell, const c10::Storage& storage) {
    if (&cell.tape == &tape) {
      if (now == 0) now = Tape::now();
      tape.pin(*cell.value);
      pinned.push_back(cell.value);
      tape.touch(*cell.value, now);
    } else {
      // Another step's, which may end meanwhile.
      records = false;
      held.emplace_back(storage, /*to_write=*/false);
    }
  }
  std::span<Value* const> read() const { return {pinned.data(), pinned.size()}; }
  // Whether replays of other calls may read what this one is about to overwrite.
  bool writes_what_others_read() const {
    const auto is_read = [this](const Value* old) {
      return std::ranges::any_of(
          old->readers, [this](const Producer* reader) { return reader != producer.get(); });
    };
    return std::ranges::any_of(writes, [&](const Write& write) { return is_read(write.old); }) ||
           std::ranges::any_of(written_parts,
                               [&](const PartWrite& part) { return is_read(part.old); });
  }
  // The kernel has thrown, or was not run. What it may have changed is not what it was.
  void give_up() {
    const auto renew = [&](Cell* cell, const Value* old) {
      if (cell == nullptr || cell->value != old) return;
      if (cell->tape.unprotect(*cell->value, /*may_differ=*/is_running)) return;
      if (is_running) cell->tape.new_version(*cell);
    };
    for (const Write& write : writes) renew(Tape::cell_of(write.tensor), write.old);
    for (const PartWrite& part : written_parts) renew(Tape::cell_of(part.storage), part.old);
  }
  void note(libtorch::Drawn drawn) {
    records = records && drawn.is_known;
    producer->drawn = std::make_unique<const libtorch::Drawn>(std::move(drawn));
  }
  // On an accelerator: what calls like this one are known by, before it runs; and when it has run,
  // the seconds that they take, by what is known so far.
  std::uint64_t signature_of(const libtorch::OperatorCall& call) const {
    libtorch::CallForm* const form = producer != nullptr ? &producer->call.form() : found.form;
    return form != nullptr ? libtorch::signature_of(*form)
                           : libtorch::signature_of(libtorch::CallForm(call));
  }
  double learn(CallOnDevice& on_device) {
    const CallOnDevice::Learnt learnt = on_device.learn();
    note_for_plans.signature = on_device.signature();
    note_for_plans.bytes = learnt.bytes;
    span = learnt.span;
    return learnt.seconds;
  }
  // For the log of the step, where there is one.
  void log_begin() {
    if (!tape.log) return;
    if (now == 0) now = Tape::now();
    logged = tape.log->begin(read(), now - OwnTime::seconds());
  }
  void log_run() {
    if (logged && tape.log)
      tape.log->ran(*logged, note_for_plans.beside_values, note_for_plans.taken);
  }
  void log_end() {
    if (logged && tape.log) tape.log->end(*logged);
    logged.reset();
  }
  // Counts the host's time since the call was intercepted, without the `seconds` of its operator.
  void count_own(double seconds) const {
    tape.report.own_time += Seconds(Tape::now() - entered - seconds);
  }
  void unpin() {
    for (Value* value : pinned) tape.unpin(*value);
    pinned.clear();
    held.clear();
  }
  BegunCall(const BegunCall&) = delete;
  BegunCall& operator=(const BegunCall&) = delete;

  Tape& tape;
  // Among those of the step that are told to plans; and what is called.
  std::optional<std::size_t> number;
  std::uint64_t key = 0;
  CallNote note_for_plans;
  std::optional<StepLog::Index> logged;
  // When it was asked for first, by the tape's clock.
  double now = 0;
  const double entered = Tape::now();
  // Seconds of the host inside of the operator.
  double on_host = 0;
  // Of its work on a device, where an observer is told of it.
  std::optional<LateObserver::Span> span;
  libtorch::CallForms::Found found;
  std::unique_ptr<Producer> producer;
  c10::SmallVector<Value*, 4> pinned;
  std::vector<libtorch::HeldMemory> held;
  c10::SmallVector<Write, 1> writes;
  // Parts of sparse tensors and the like that are written to.
  struct PartWrite {
    c10::Storage storage;
    const Value* old;
  };
  std::vector<PartWrite> written_parts;
  // Something about the call is beyond the tape: what it makes are roots.
  bool records = true;
  bool is_reader = false;
  bool is_running = false;
  bool is_ended = false;
};

}  // namespace reprise::tape
