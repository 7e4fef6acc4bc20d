// Bringing values back: their producers run again, inputs first.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <reprise/error.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "libtorch/memory/counting_allocator.h"
#include "libtorch/memory/memory_limit.h"
#include "tape/observation.h"
#include "tape/own_time.h"
#include "tape/tape.h"

namespace reprise::tape {
namespace {

using libtorch::ManagedMemory;

// What an operator warns of, it has said when it ran first.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}

 private:
  const c10::WarningUtils::WarningHandlerGuard here_{this};
};

// A generator that the call draws from unseen is as it was at the call, and is put back.
class DrawingAgain {
 public:
  explicit DrawingAgain(const Producer& producer) {
    if (producer.drawn == nullptr || !producer.drawn->unseen) return;
    before_ = RandomState::of_generators({&producer.drawn->unseen->first, 1});
    producer.drawn->unseen->second.restore();
  }
  ~DrawingAgain() { before_.restore(); }
  DrawingAgain(const DrawingAgain&) = delete;
  DrawingAgain& operator=(const DrawingAgain&) = delete;

 private:
  RandomState before_;
};

// The device that kernels take for theirs, where it is an accelerator.
class CurrentDevice {
 public:
  explicit CurrentDevice(const DeviceSide* side) {
    if (side != nullptr) current_.emplace(side->device());
  }

 private:
  std::optional<libtorch::AcceleratorDevice::Current> current_;
};

// The slot whose storage is given in `slot`, which may be another one: a call may have several
// tensors on one storage. Of such it is the one by which the call writes to it, else the first.
std::size_t slot_of_storage(const Producer& producer, std::size_t slot) {
  const std::int16_t same_as = producer.call.form().slots[slot].same_as;
  if (same_as != libtorch::CallForm::kNoSlot) slot = static_cast<std::size_t>(same_as);
  const Producer::Input& input = producer.inputs[slot];
  if (input.value == nullptr || std::ranges::count(input.value->readers, &producer) < 2) {
    return slot;
  }
  std::size_t first = producer.inputs.size();
  for (std::size_t i = 0; i < producer.inputs.size(); ++i) {
    if (producer.inputs[i].value != input.value) continue;
    if (producer.inputs[i].use == Producer::Use::kUpdate) return i;
    first = std::min(first, i);
  }
  return first;
}

}  // namespace

c10::Storage Tape::new_storage(std::int64_t bytes) const {
  if (side_ != nullptr) return side_->device().new_storage(bytes);
  auto* const allocator = c10::GetAllocator(c10::kCPU);
  return {c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
          allocator->allocate(static_cast<std::size_t>(bytes)), allocator, /*resizable=*/true};
}

c10::Storage Tape::copy_of(const void* data, std::int64_t bytes) const {
  if (side_ != nullptr) return side_->device().copy_of(data, bytes);
  c10::Storage copy = new_storage(bytes);
  std::memcpy(copy.mutable_data(), data, static_cast<std::size_t>(bytes));
  return copy;
}

c10::Storage Tape::storage_for_replay(const Producer& producer, std::size_t slot) {
  const Producer::Input& input = producer.inputs[slot];
  // A value without elements has nothing to hold its storage once that died.
  if (input.use == Producer::Use::kScratch || input.bytes == 0) return new_storage(input.bytes);
  Value& value = *input.value;
  if (side_ != nullptr) side_->used(value);
  if (input.use == Producer::Use::kUpdate && value.cell == nullptr && value.producer != nullptr &&
      value.readers.size() == 1) {
    // Made for this call alone, which may have the bytes.
    note_dropped(value);
    c10::Storage taken = std::exchange(value.detached, {});
    if (options_.observer) tell_spent(*options_.observer, *this, value);
    return taken;
  }
  // A storage beside the one that holds it: its use count stays as it is, and it may be dying.
  // Of a root that is about to be written to, a copy has the bytes.
  void* const data =
      value.detached ? value.detached.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()
                     : ManagedMemory::memory_of(*value.cell).get();
  if (input.use == Producer::Use::kRead) {
    return {c10::Storage::use_byte_size_t(), static_cast<std::size_t>(input.bytes),
            c10::DataPtr(data, value.detached ? value.detached.device() : device_), nullptr,
            /*resizable=*/false};
  }
  return copy_of(data, input.bytes);
}

// Other bytes than those that were dropped are not taken: the value stays gone, and the next reader
// is told, too.
void Tape::give_bytes(Value& value, c10::Storage storage) {
  if (value.hash && *value.hash != hash_of(storage.data(), value.defined)) {
    throw DeterminismError(
        "memory budget: the values of a result of " + value.producer->call.name() + " (" +
        to_string(Bytes(value.size)) +
        ") differ from the dropped values after the operator was replayed. Something that it reads "
        "was changed past LibTorch's operators (through a pointer), or the operator does not "
        "compute the same twice, or the store has lost the parked value");
  }
  value.hash.reset();
  // An operator that is run again for another result makes what is parked, too.
  value.parked.reset();
  if (value.cell == nullptr) {
    value.detached = std::move(storage);
  } else {
    ManagedMemory::fill(*value.cell->storage, *value.cell,
                        storage.set_data_ptr(c10::DataPtr(nullptr, c10::kCPU)));
  }
  if (side_ != nullptr) side_->made_again(value);
  note_restored(value);
  update_entry(value);
  if (options_.observer) tell_restored(*options_.observer, *this, value);
}

void Tape::replay(Producer& producer) {
  if (side_ != nullptr) {
    make_room_on(device_, side_->of_budget.bytes_to_replay(producer), /*is_guess=*/false);
  }
  const WorkWatch watch;
  LateObserver* const late = side_ != nullptr ? side_->of_budget.late.get() : nullptr;
  std::optional<LateObserver::Running> observed;
  if (late != nullptr) observed = late->start(side_->device().current_stream());
  std::vector<c10::Storage> given(producer.inputs.size());
  std::vector<c10::IValue> results;
  {
    const CurrentDevice here(side_.get());
    // Reads the report, so it begins while this thread still has the lock.
    std::optional<KernelRun> kernel;
    if (side_ == nullptr) kernel.emplace(*this, libtorch::cpu_levels().live());
    // Its kernel may have threads that allocate. Inputs are pinned, and results not there yet.
    const libtorch::LimitLoan loan;
    const DrawingAgain drawing(producer);
    const Silence silence;
    const auto storage_of = [&](std::size_t slot) {
      const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
      const std::size_t from = slot_of_storage(producer, slot);
      c10::Storage& storage = given[from];
      if (!storage) storage = storage_for_replay(producer, from);
      return given[slot] = storage;
    };
    static const std::vector<at::Generator> kNone;
    results = producer.call.run(storage_of, producer.drawn ? producer.drawn->before : kNone);
  }
  // An accelerator is only given the work.
  const double seconds = side_ != nullptr ? producer.seconds : watch.seconds();
  if (side_ == nullptr) {
    costs_.replayed(producer.call.form().learnt, producer.seconds, producer.bytes, seconds);
  }
  ++report.replayed;
  report.replay_time += Seconds(seconds);
  if (late != nullptr) {
    late->next(late->end(std::move(observed), side_->device().current_stream()));
  }
  if (options_.observer) tell_replayed(*options_.observer, *this, producer, seconds);
  for (const Producer::Output& output : producer.outputs) {
    if (output.value == nullptr || output.value->has_bytes()) continue;
    c10::Storage storage;
    if (output.slot >= 0) {
      storage = given[static_cast<std::size_t>(output.slot)];
    } else {
      if (static_cast<std::size_t>(output.result) >= results.size()) {
        throw DeterminismError("memory budget: " + producer.call.name() + " made " +
                               std::to_string(results.size()) +
                               " results when it was run again, and more at first");
      }
      const c10::IValue& result = results[static_cast<std::size_t>(output.result)];
      storage =
          output.element < 0
              ? result.toTensor().storage()
              : result.toListRef()[static_cast<std::size_t>(output.element)].toTensor().storage();
    }
    if (static_cast<std::int64_t>(storage.nbytes()) != output.value->size) {
      throw DeterminismError(
          "memory budget: " + producer.call.name() + " made " + std::to_string(storage.nbytes()) +
          " bytes when it was run again, and " + std::to_string(output.value->size) + " at first");
    }
    give_bytes(*output.value, std::move(storage));
  }
}

// False if the device was out of memory, and something has been given up for another try. More each
// time.
bool Tape::replay_or_give_up(Producer& producer, std::int64_t& bytes) {
  if (side_ == nullptr) {
    replay(producer);
    return true;
  }
  try {
    replay(producer);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    bytes = std::max(2 * bytes, side_->of_budget.bytes_to_replay(producer));
    if (!give_up_on(device_, bytes)) throw;
    return false;
  }
}

// Whether the bytes of a detached value may serve another replay soon: some reader's result is
// gone. Without that, what several ways lead to would be made once for each of them.
bool Tape::is_of_use(const Value& value) {
  if (value.cell != nullptr || value.producer == nullptr) return true;
  for (const Producer* reader : value.readers) {
    for (const Producer::Output& output : reader->outputs) {
      if (output.value != nullptr && output.value->is_lost()) return true;
    }
  }
  return false;
}

void Tape::spare(Value& value) {
  if (!value.has_bytes()) return;
  note_dropped(value);
  value.detached = {};
  if (options_.observer) tell_spent(*options_.observer, *this, value);
}

// False if it is not parked, or has to be made again all the same.
bool Tape::unpark(Value& value) {
  if (value.parked == nullptr) return false;
  if (side_ != nullptr) make_room_on(device_, value.size, /*is_guess=*/false);
  c10::Storage storage = parking_->load(value.parked, report.transfer_time);
  if (!storage) return false;
  ++report.loaded;
  give_bytes(value, std::move(storage));
  return true;
}

// An input that was made for its reader is pinned at once. Inputs that were there already are
// pinned in their turn where `is_careful`, else when the reader runs: they may be dropped
// meanwhile.
void Tape::restore(Value& target, bool is_careful) {
  struct Frame {
    Value* value;
    Value* made = nullptr;
    c10::SmallVector<Value*, 3> pinned;
  };
  std::vector<Frame> stack;
  // A value may be made more than once on the way, where the bytes do not suffice to keep it.
  const std::int64_t patience = 1000 + 64 * values_;
  const std::int64_t most = report.replayed + patience;
  std::int64_t give_up = 0;
  restoring_.push_back(&target);
  const auto release = [&](Frame& frame) {
    const auto pinned = std::move(frame.pinned);
    frame.pinned.clear();
    for (Value* value : pinned) unpin(*value);
  };
  try {
    stack.push_back({&target, nullptr, {}});
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.made != nullptr) {
        pin(*frame.made);
        frame.pinned.push_back(std::exchange(frame.made, nullptr));
      }
      if (unpack(*frame.value) || unpark(*frame.value)) {
        release(frame);
        stack.pop_back();
        continue;
      }
      Producer* const producer = frame.value->producer;
      if (producer == nullptr) {
        if (frame.value->cell != nullptr && is_gone(*frame.value->cell)) throw Error(kLostText);
        throw Error(
            "memory budget: bytes that cannot be recomputed are gone; this is a defect of reprise");
      }
      Value* const next =
          is_careful ? next_to_pin(*producer, frame.pinned) : first_missing(*producer);
      if (next != nullptr) {
        frame.made = next;
        if (!next->has_bytes()) stack.push_back({next, nullptr, {}});
        continue;
      }
      for (const Producer::Input& input : producer->inputs) {
        if (input.value == nullptr || std::ranges::count(frame.pinned, input.value) != 0) continue;
        pin(*input.value);
        frame.pinned.push_back(input.value);
      }
      if (report.replay_time > options_.replay_limit) {
        throw BudgetError("memory budget: operators were run again for " +
                          std::to_string(report.replay_time.count()) +
                          " s in this step, and BudgetOptions::replay_limit is " +
                          std::to_string(options_.replay_limit.count()) +
                          " s. Raise either, or take another heuristic than " +
                          to_string(options_.heuristic));
      }
      if (report.replayed >= most) {
        if (tries_again()) throw NoRoom();
        throw BudgetError(
            "memory budget: to restore one tensor, " + std::to_string(patience) +
            " operators were replayed, and it is still missing: their results are "
            "dropped again before they are read. Raise the budget, or take another heuristic "
            "than " +
            to_string(options_.heuristic));
      }
      if (!replay_or_give_up(*producer, give_up)) continue;
      for (Value* value : frame.pinned) {
        if (!is_of_use(*value) && !following_.wants(*value)) spare(*value);
      }
      release(frame);
      stack.pop_back();
    }
  } catch (...) {
    restoring_.pop_back();
    for (Frame& frame : stack) release(frame);
    throw;
  }
  restoring_.pop_back();
}

void Tape::close(bool may_throw) {
  std::unique_lock<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  // Storages that other threads are freeing have their managers told as soon as the lock is free.
  const auto some_are_dying = [&] {
    for (Cell *cell = cells_, *next = nullptr; cell != nullptr; cell = next) {
      next = cell->next;
      if (ManagedMemory::is_taken_away(*cell)) {
        abandon(*cell);
      } else if (ManagedMemory::is_dying(*cell)) {
        return true;
      }
    }
    return false;
  };
  const auto wait = [&] {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  };
  while (some_are_dying()) wait();
  std::vector<Value*> pinned;
  std::exception_ptr first;
  for (Cell* cell = cells_; cell != nullptr && first == nullptr; cell = cell->next) {
    if (is_gone(*cell)) continue;
    try {
      restore(*cell->value);
      pin(*cell->value);
      pinned.push_back(cell->value);
    } catch (...) {
      if (may_throw) first = std::current_exception();
    }
  }
  for (Value* value : pinned) {
    if (side_ != nullptr) side_->hand_over(*value);
    unpin(*value);
  }
  if (first != nullptr) std::rethrow_exception(first);
  // In one go: another step may make room as soon as the lock is free.
  for (Cell *cell = cells_, *next = nullptr; cell != nullptr; cell = next) {
    next = cell->next;
    if (!ManagedMemory::let_go(*cell->storage, *cell, kLostText)) continue;
    leave_list(*cell);
    Value* const value = cell->value;
    // A Pin may outlive the step.
    value->pins = 0;
    leave_index(*value);
    value->cell = nullptr;
    delete cell;
    forget_if_unwanted(value);
  }
  if (side_ != nullptr) side_->let_go();
  is_closed_ = true;
  // What has begun to die since leaves the list when its manager is told.
  while (some_are_dying()) wait();
}

}  // namespace reprise::tape
