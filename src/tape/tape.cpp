// Values: made, attached, detached, forgotten. Dropping and replaying are in evictor.cpp and
// restorer.cpp.
#include "tape/tape.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <utility>

#include "libtorch/autograd/engine.h"
#include "libtorch/memory/counting_allocator.h"
#include "libtorch/memory/memory_limit.h"
#include "tape/observation.h"

namespace reprise::tape {

using libtorch::ManagedMemory;

namespace {

// Results of backward are dropped last, but not those of evaluation and updates. To replay a
// gradient that waits to be added to another one takes all of backward so far, and its forward,
// which may not fit.
constexpr float kWeightOfGradients = 1e8;

}  // namespace

std::int64_t living_records() {
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  return Cell::living + Value::living + Producer::living;
}

Tape::Tape(const BudgetOptions& options, const plan::EvictionHeuristic& heuristic,
           const Parts& parts, std::shared_ptr<Weighing> weighing)
    : options_(options),
      side_(parts.accelerator ? std::make_unique<DeviceSide>(*parts.accelerator) : nullptr),
      device_(parts.accelerator ? parts.accelerator->device.device() : c10::Device(c10::kCPU)),
      neighbourhood_(heuristic.neighbourhood()),
      costs_(parts.costs),
      parking_(parts.parking),
      weighing_(std::move(weighing)),
      index_(heuristic, [this](const plan::EvictionEntry& entry) { return neighbourhood(entry); }) {
  Learning* const learning = parts.learning;
  if (parts.logs) {
    log.emplace(options.min_bytes.count);
    is_index_filled_ = true;
  }
  const auto attention = learning != nullptr ? learning->attention() : Learning::Attention::kNone;
  if (attention == Learning::Attention::kNone) return;
  following_.learning = learning;
  if (attention == Learning::Attention::kNote) following_.record.emplace();
  // Its bytes are counted.
  is_index_filled_ = true;
}

Tape::~Tape() { close(/*may_throw=*/false); }

Cell* Tape::cell_of(const c10::Storage& storage) {
  auto* const cell = static_cast<Cell*>(ManagedMemory::manager_of(*storage.unsafeGetStorageImpl()));
  return cell != nullptr && cell->is_orphan ? nullptr : cell;
}

Value& Tape::value_of(const at::Tensor& tensor) {
  if (Cell* cell = cell_of(tensor)) return *cell->value;
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  auto* cell = new Cell(*this, storage);
  ManagedMemory::manage(storage, *cell);
  const c10::DataPtr& memory = ManagedMemory::memory_of(*cell);
  cell->foreign = memory.get() != nullptr && !is_own_memory(memory) &&
                  (side_ != nullptr || !libtorch::is_uncounted_memory(memory));
  cell->gone = memory.get() == nullptr && storage.nbytes() != 0;
  // Among the tensors that share it there may be a row of it.
  cell->is_read_by_pointer =
      side_ == nullptr && holds_whole_numbers(tensor) && tensor.storage().use_count() > 1;
  cell->next = cells_;
  if (cells_ != nullptr) cells_->previous = cell;
  cells_ = cell;
  return new_version(*cell);
}

bool Tape::is_own_memory(const c10::DataPtr& memory) const {
  return side_ != nullptr ? side_->device().is_own(memory) : libtorch::is_counted_memory(memory);
}

Value& Tape::host_number(const at::Tensor& tensor) {
  const libtorch::HeldMemory held(tensor);
  auto* const host = c10::GetAllocator(c10::kCPU);
  const std::size_t bytes = tensor.storage().nbytes();
  c10::Storage copy(c10::Storage::use_byte_size_t(), bytes,
                    host->clone(tensor.storage().data(), bytes), host, /*resizable=*/false);
  auto* value = new Value;
  ++values_;
  value->size = static_cast<std::int64_t>(tensor.storage().nbytes());
  value->defined = value->bytes = value->size;
  value->detached = std::move(copy);
  if (value->size < options_.min_bytes.count) little_kept_ += value->size;
  return *value;
}

Value& Tape::new_version(Cell& cell) {
  auto* value = new Value;
  ++values_;
  value->size = static_cast<std::int64_t>(cell.storage->nbytes());
  value->bytes = value->size;
  Value* const before = std::exchange(cell.value, value);
  value->defined = before != nullptr ? std::min(before->defined, value->size) : value->size;
  value->cell = &cell;
  for (std::uint32_t i = 0; i < cell.holds; ++i) {
    pin(*value);
    unpin(*before);
  }
  if (before != nullptr) {
    if (log) {
      for (std::uint32_t i = 0; i < cell.holds; ++i) log->released(*before);
      log->overwritten(*before);
    }
    // The old contents are overwritten.
    leave_index(*before);
    before->cell = nullptr;
    if (before->detached && before->size >= options_.min_bytes.count) dead_roots_.push_back(before);
    if (!before->readers.empty() && !before->detached) note_dropped(*before);
    forget_if_unwanted(before);
  }
  return *value;
}

void Tape::read(Producer& producer, Value& value) { value.readers.push_back(&producer); }

void Tape::add_result(Producer* producer, const at::Tensor& tensor, std::int16_t result,
                      std::int16_t element) {
  const bool own = is_fresh(tensor);
  Value& value = value_of(tensor);
  value.cell->own = own;
  value.cell->is_of_step = true;
  value.defined = libtorch::leading_bytes(tensor);
  value.width = static_cast<std::uint8_t>(tensor.element_size());
  if (!own || producer == nullptr) return;
  value.producer = producer;
  producer->outputs.push_back({&value, result, element, -1});
}

void Tape::set_producer(Value& value, Producer& producer, std::int16_t slot) {
  value.producer = &producer;
  producer.outputs.push_back({&value, -1, -1, slot});
}

// For the step: groups of dropped values add it up, and take it off again.
void Tape::look_up_costs(Producer& producer) const {
  producer.again = producer.seconds;
  if (side_ != nullptr || !costs_.differ_from_first_runs()) return;
  for (const Producer::Input& input : producer.inputs) producer.bytes += input.bytes;
  for (const Producer::Output& output : producer.outputs) {
    if (output.slot < 0) producer.bytes += output.value->size;
  }
  producer.again = costs_.seconds(producer.call.form().learnt, producer.seconds, producer.bytes);
}

double Tape::add(std::unique_ptr<Producer> producer, double now,
                 std::optional<StepLog::Index> logged) {
  ++report.operators;
  std::uint32_t depth = 0;
  for (const Producer::Input& input : producer->inputs) {
    if (input.value != nullptr) depth = std::max(depth, input.value->depth);
  }
  const std::int64_t bytes = bytes_to_make(*producer);
  look_up_costs(*producer);
  const double again = producer->again;
  look_for_kinds(*producer);
  number_results(*producer);
  const bool is_of_backward = !at::GradMode::is_enabled() && libtorch::current_backward_id() >= 0;
  for (const Producer::Output& output : producer->outputs) {
    output.value->own_cost = again;
    if (output.value->kind_bit != 0) {
      output.value->own_cost = std::min(again, costs_.seconds_to_pack(output.value->size));
    }
    output.value->depth = depth + 1;
    output.value->beside = bytes - output.value->size;
    if (is_of_backward) output.value->weight *= kWeightOfGradients;
    touch(*output.value, now);
    update_entry(*output.value);
  }
  const bool is_of_use = !producer->outputs.empty();
  if (is_of_use && log) {
    log->made(logged ? *logged : log->alone(*producer, now), *producer, log_costs());
    for (const Producer::Output& output : producer->outputs) {
      const Cell& cell = *output.value->cell;
      if (!is_droppable(cell)) log->fixed(*output.value);
      // new_version() moved these before the log knew the value.
      for (std::uint32_t i = 0; i < cell.holds; ++i) log->held(*output.value);
    }
  }
  Producer* const added = producer.release();
  if (!is_of_use) discard(added);
  return again;
}

StepLog::Costs Tape::log_costs() const {
  return {.pack = [this](std::int64_t bytes) { return costs_.seconds_to_pack(bytes); },
          .store =
              [this](std::int64_t bytes) {
                return parking_ != nullptr ? parking_->seconds(bytes) : -1;
              }};
}

void Tape::discard(Producer* producer) {
  Values unwanted;
  leave_inputs(*producer, unwanted);
  delete producer;
  forget(unwanted);
}

void Tape::leave_inputs(Producer& producer, Values& unwanted) {
  for (const Producer::Input& input : producer.inputs) {
    if (input.value == nullptr) continue;
    auto& readers = input.value->readers;
    // Backward forgets in the reverse order.
    const auto place = std::find(readers.rbegin(), readers.rend(), &producer);
    *place = readers.back();
    readers.pop_back();
    if (!is_wanted(*input.value)) unwanted.push_back(input.value);
  }
}

void Tape::pin(Value& value) {
  if (++value.pins == 1 && value.is_in_index()) index_.pin(value);
}

void Tape::unpin(Value& value) {
  if (--value.pins != 0) return;
  if (value.is_in_index() && may_drop(value)) {
    index_.unpin(value);
  } else {
    update_entry(value);
  }
  forget_if_unwanted(&value);
}

void Tape::enter_index(Value& value, double last_use) {
  index_.insert(value, last_use);
  enter_lists(value);
}

void Tape::leave_index(Value& value) {
  if (!value.is_in_index() || value.pins != 0) return;
  leave_lists(value);
  index_.remove(value);
}

bool Tape::may_drop(const Value& value) const {
  return value.producer != nullptr && value.size > 0 && value.size >= options_.min_bytes.count &&
         value.has_bytes() && (value.cell == nullptr || is_droppable(*value.cell));
}

// In the index is what may be dropped; of what is pinned, what might be when the last pin goes.
void Tape::update_entry(Value& value) {
  if (value.pins != 0) return;
  if (!is_index_filled_) return;
  if (may_drop(value) == value.is_in_index()) return;
  if (value.is_in_index()) {
    leave_index(value);
  } else {
    enter_index(value, now());
  }
}

void Tape::fill_index() {
  is_index_filled_ = true;
  for (Cell* cell = cells_; cell != nullptr; cell = cell->next) {
    Value& value = *cell->value;
    if (value.pins == 0 && may_drop(value)) enter_index(value, value.last_use());
  }
}

bool Tape::may_be_read_by_pointer(const at::Tensor& tensor) const {
  if (!holds_whole_numbers(tensor) || side_ != nullptr || !manages(tensor)) return false;
  return std::ranges::count_if(tensor.sizes(), [](std::int64_t size) { return size != 1; }) <= 1;
}

void Tape::keep_for_pointers(const c10::Storage& storage) {
  Cell* const cell = cell_of(storage);
  if (cell == nullptr || cell->is_read_by_pointer) return;
  // It may be another step's.
  cell->tape.keep_for_pointers(*cell);
}

void Tape::keep_for_pointers(Cell& cell) {
  Value& value = *cell.value;
  if (!is_gone(cell)) restore(value);
  if (log) {
    log->restored(value);
    log->fixed(value);
  }
  note_fixed(value);
  cell.is_read_by_pointer = true;
  if (value.packed != nullptr && value.has_bytes()) take_bits(value);
  update_entry(value);
}

void Tape::forget_if_unwanted(Value* value) {
  if (is_wanted(*value)) return;
  Values unwanted{value};
  forget(unwanted);
}

void Tape::destroy(Value* value) {
  if (value->number != kNoNumber) following_.values[value->number] = nullptr;
  if (value->watch != Value::kUnwatched) weighing_->forget(value->watch);
  delete value;
}

// Without recursion: chains are as long as a step.
void Tape::forget(Values& unwanted) {
  c10::SmallVector<c10::Storage, 4> bytes;
  while (!unwanted.empty()) {
    Value* const value = unwanted.back();
    unwanted.pop_back();
    leave_index(*value);
    if (value->packed != nullptr) take_bits(*value);
    if (value->node != plan::CostClasses::kNone) note_restored(*value);
    Producer* const producer = value->producer;
    if (value->detached && producer != nullptr) {
      value->detached = {};
      if (options_.observer) tell_spent(*options_.observer, *this, *value);
    } else if (value->detached) {
      if (value->size < options_.min_bytes.count) {
        little_kept_ -= value->size;
      } else {
        std::erase(dead_roots_, value);
      }
      // Somebody else's memory, perhaps, that runs what it likes when it is freed.
      bytes.push_back(std::move(value->detached));
    }
    --values_;
    if (producer == nullptr || still_makes(*producer, *value)) {
      destroy(value);
      continue;
    }
    destroy(value);
    leave_inputs(*producer, unwanted);
    delete producer;
  }
}

void Tape::leave_list(Cell& cell) {
  if (cell.previous != nullptr) cell.previous->next = cell.next;
  if (cell.next != nullptr) cell.next->previous = cell.previous;
  if (cells_ == &cell) cells_ = cell.next;
}

void Tape::abandon(Cell& cell) {
  Value& value = *std::exchange(cell.value, nullptr);
  leave_list(cell);
  leave_index(value);
  value.pins = 0;
  if (log) log->died(value);
  value.cell = nullptr;
  cell.is_orphan = true;
  forget_if_unwanted(&value);
}

bool Tape::may_drop_once_detached(const Value& value, const Cell& cell,
                                  const c10::DataPtr& memory) const {
  return memory.get() != nullptr && cell.own && value.producer != nullptr &&
         !value.readers.empty() && value.size > 0 && value.size >= options_.min_bytes.count;
}

void Tape::storage_died(Cell& cell, c10::DataPtr memory) noexcept {
  leave_list(cell);
  if (options_.observer) tell_released(*options_.observer, cell);
  Value& value = *cell.value;
  value.pins -= cell.holds;
  if (log) {
    for (std::uint32_t i = 0; i < cell.holds; ++i) log->released(value);
    log->died(value);
  }
  leave_index(value);
  value.cell = nullptr;
  if (!value.readers.empty() && value.producer == nullptr && memory.get() != nullptr) {
    // A root that replays need: its bytes are the tape's from now on.
    value.detached = c10::Storage(c10::Storage::use_byte_size_t(), cell.storage->nbytes(),
                                  std::move(memory), nullptr, false);
    if (value.size < options_.min_bytes.count) {
      little_kept_ += value.size;
    } else {
      keep_or_free_dead_root(value);
    }
  } else if (following_.wants(value) && may_drop_once_detached(value, cell, memory)) {
    // The plan makes something of it again.
    value.detached = c10::Storage(c10::Storage::use_byte_size_t(), cell.storage->nbytes(),
                                  std::move(memory), nullptr, false);
    update_entry(value);
  } else if (!value.readers.empty() && memory.get() != nullptr) {
    note_dropped(value);
  }
  forget_if_unwanted(&value);
  delete &cell;
}

}  // namespace reprise::tape
