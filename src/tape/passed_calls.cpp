// Calls of which nothing is recorded.
#include <ATen/Functions.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "libtorch/memory/managed_memory.h"
#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_interceptor.h"
#include "tape/begun_call.h"
#include "tape/recorder.h"
#include "tape/tape.h"

namespace reprise::tape {

using libtorch::OperatorCall;
using libtorch::OperatorFacts;

// Nothing is recorded of a call that makes only what is too small to be dropped: what it makes are
// roots. It may write to memory that the tape has not met.
bool Recorder::is_little(const OperatorCall& call, const OperatorFacts& facts,
                         const libtorch::CallForms::Found& found) const {
  if (found.form == nullptr || !found.form->learnt.makes_little || tape_.records_little() ||
      facts.communicates || options_.observer != nullptr || tape_.device_side() != nullptr) {
    return false;
  }
  const auto arguments = call.arguments();
  bool writes_known = false;
  for (const OperatorFacts::Write& write : facts.writes) {
    if (!write.happens(arguments)) continue;
    libtorch::visit_arguments(arguments, [&](const at::Tensor& tensor, std::size_t argument, int) {
      if (argument == write.argument && tensor.defined() && Tape::cell_of(tensor) != nullptr) {
        writes_known = true;
      }
    });
  }
  return !writes_known;
}

// Whether anything that the call has made or written to is large enough to be dropped.
bool Recorder::makes_much(const OperatorCall& call, const BegunCall& begun) const {
  const auto is_large = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return false;
    if (!tape_.manages(tensor)) return tensor.is_nested();
    return static_cast<std::int64_t>(tensor.storage().nbytes()) >= options_.min_bytes.count;
  };
  bool is_any = std::ranges::any_of(
      begun.writes, [&](const BegunCall::Write& write) { return is_large(write.tensor); });
  libtorch::visit_arguments(call.results(), [&](const at::Tensor& tensor, std::size_t, int) {
    is_any = is_any || is_large(tensor);
  });
  return is_any;
}

void Recorder::pass_by(OperatorCall& call, libtorch::CallForm& form, BegunCall& begun,
                       std::unique_lock<libtorch::LimitMutex>& lock) {
  libtorch::visit_arguments(call.arguments(), [&](const at::Tensor& tensor, std::size_t, int) {
    Cell* const cell = tensor.defined() ? Tape::cell_of(tensor) : nullptr;
    if (cell != nullptr) begun.pin(*cell, tensor.storage());
  });
  const bool is_told = tape_.follows() && tape_.reads_told(begun.read());
  if (is_told) {
    begun.number = tape_.begin_call(libtorch::key_of(call, begun.found), begun.read());
  }
  begun.log_begin();
  for (Value* value : begun.pinned) tape_.restore(*value);
  std::optional<CallMeter> meter;
  if (tape_.log || (is_told && tape_.takes_notes())) meter.emplace(tape_, begun.read());
  ++tape_.report.operators;
  begun.count_own(0);
  lock.unlock();
  call.proceed();
  libtorch::visit_arguments(call.results(), [&](const at::Tensor& tensor, std::size_t, int) {
    if (tensor.defined() && tape_.manages(tensor)) tape_.shrink(tensor);
  });
  const bool made_much = makes_much(call, begun);
  if (!made_much && begun.pinned.empty() && !options_.paranoid && !meter) return;
  lock.lock();
  if (meter) meter->tell(begun.note_for_plans);
  meter.reset();
  begun.log_run();
  begun.log_end();
  if (made_much && !tape_.is_closed()) form.learnt.makes_little = false;
  begun.unpin();
  if (is_told) tape_.end_call(*begun.number, begun.note_for_plans);
  if (options_.paranoid) tape_.drop_all();
}

// What a compiled graph takes counts for the least bytes of the steps.
void Recorder::around_unseen(const std::function<void()>& run) {
  BegunCall begun(tape_);
  std::unique_lock<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  std::optional<CallMeter> meter;
  if (tape_.log) {
    begun.log_begin();
    meter.emplace(tape_, begun.read());
  }
  lock.unlock();
  run();
  if (!meter) return;
  lock.lock();
  meter->tell(begun.note_for_plans);
  meter.reset();
  begun.log_run();
  begun.log_end();
}

// LibTorch would let two storages share memory that a tape may take from one of them.
void Recorder::copy_at_once(OperatorCall& call) {
  const at::Tensor& tensor = call.arguments()[0].toTensor();
  const libtorch::HeldMemory held(tensor);
  const c10::IValue copy = tensor.clone();
  call.answer({copy});
}

}  // namespace reprise::tape
