// Custom functions as producers (reprise/selective.h). Their operators are recorded one by
// one as ever; what they fill through pointers no operator has made, and comes from the function.
#include "tape/function_run.h"

#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>
#include <reprise/selective.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "libtorch/operators/operator_effects.h"
#include "libtorch/operators/recorded_function.h"
#include "tape/begun_call.h"
#include "tape/own_time.h"
#include "tape/recorder.h"

namespace reprise::tape {
namespace {

using libtorch::ManagedMemory;
using Lock = std::unique_lock<libtorch::LimitMutex>;

const at::Generator& generator_of_cpu() { return at::globalContext().defaultGenerator(c10::kCPU); }

std::uint64_t key_of_function(const std::string& name, std::span<Value* const> arguments) {
  std::uint64_t key = std::hash<std::string>()(name);
  for (const Value* value : arguments) {
    key = key * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(value->size);
  }
  return key;
}

}  // namespace

RandomState FunctionRun::random_state() {
  return RandomState::of_generators({&generator_of_cpu(), 1});
}

FunctionRun::FunctionRun(const Tape& tape, std::span<Value* const> arguments, RandomState random)
    : tape_(tape), first_(libtorch::MemoryManager::next_number()), random_(std::move(random)) {
  for (const Value* value : arguments) arguments_.push_back({value->cell, value});
  current = this;
}

bool FunctionRun::has_made(const c10::Storage& storage) const {
  const Cell* const cell = Tape::cell_of(storage);
  if (cell != nullptr && ManagedMemory::number_of(*cell) < first_) return false;
  return (cell != nullptr && cell->is_of_step) ||
         fresh_.mark().age_of(*storage.unsafeGetStorageImpl()) == libtorch::Age::kFresh;
}

void FunctionRun::note(const libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts) {
  if (!is_repeatable_) return;
  const auto arguments = call.arguments();
  const auto generator = libtorch::generator_of_draw(facts, arguments);
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  const auto is_known = [&](const at::Tensor& tensor) {
    if (!tape_.manages(tensor)) return false;
    const Cell* const cell = Tape::cell_of(tensor);
    return std::ranges::count(arguments_, cell, &Argument::cell) != 0 || has_made(tensor.storage());
  };
  libtorch::visit_arguments(arguments, [&](const at::Tensor& tensor, std::size_t, int) {
    if (tensor.defined() && !is_known(tensor)) is_repeatable_ = false;
  });
  if (std::ranges::any_of(arguments, libtorch::may_go_deeper) || facts.unrepeatable ||
      facts.communicates || (generator && *generator != generator_of_cpu())) {
    is_repeatable_ = false;
  }
}

bool FunctionRun::can_run_again() const {
  return is_repeatable_ && std::ranges::all_of(arguments_, [](const Argument& argument) {
           // The value is pinned; its storage may have died, and its cell with it.
           return argument.value->cell == argument.cell;
         });
}

std::optional<std::pair<at::Generator, RandomState>> FunctionRun::drawn() const {
  if (random_.is_current()) return std::nullopt;
  return std::pair(generator_of_cpu(), random_);
}

// A result that the function has filled itself: it seems to be a factory's.
bool Tape::add_function_result(Producer& producer, const at::Tensor& tensor, std::int16_t result,
                               const FunctionRun& run) {
  if (!tensor.defined() || !manages(tensor) || !run.has_made(tensor.storage())) return false;
  if (cell_of(tensor) == nullptr) {
    const bool own = is_own_memory(tensor.storage().data_ptr());
    Cell& cell = *value_of(tensor).cell;
    cell.own = own;
    cell.is_of_step = true;
  }
  Value& value = value_of(tensor);
  if (!is_droppable(*value.cell) || value.producer != nullptr ||
      value.size < options_.min_bytes.count) {
    return false;
  }
  value.defined = libtorch::leading_bytes(tensor);
  value.width = static_cast<std::uint8_t>(tensor.element_size());
  value.producer = &producer;
  producer.outputs.push_back({&value, result, -1, -1});
  return true;
}

bool Recorder::intercept_function(detail::FunctionCall& call,
                                  const std::function<void()>& proceed) {
  // One in another is a part of that one.
  if (FunctionRun::current != nullptr || tape_.device_side() != nullptr ||
      c10::InferenceMode::is_enabled()) {
    return false;
  }
  std::vector<at::Tensor> arguments;
  libtorch::RecordedFunction::Run again = call.keep(arguments);
  BegunCall begun(tape_);
  begun.records = again != nullptr;
  std::optional<FunctionRun> run;
  std::vector<at::Tensor> defined;
  std::vector<std::int64_t> versions;
  RandomState random = FunctionRun::random_state();
  {
    const Lock lock(libtorch::limit_mutex());
    if (tape_.is_closed()) return false;
    for (const at::Tensor& tensor : arguments) {
      if (!tensor.defined()) continue;
      if (!tape_.manages(tensor) || tensor.is_inference()) {
        libtorch::visit_storages(tensor, [&](const c10::Storage& storage) {
          begin_part(storage, /*is_written=*/false, begun);
        });
        begun.records = false;
        continue;
      }
      Cell& cell = *tape_.value_of(tensor).cell;
      begun.pin(cell, tensor.storage());
      begun.records = begun.records && !cell.may_change_unseen();
      defined.push_back(tensor);
      versions.push_back(tensor._version());
    }
    for (Value* value : begun.pinned) tape_.restore(*value);
    run.emplace(tape_, begun.read(), std::move(random));
  }
  auto function =
      std::make_shared<libtorch::RecordedFunction>(call.name, std::move(again), arguments);
  arguments.clear();
  const double own = OwnTime::seconds();
  const double start = Tape::now();
  proceed();
  const double seconds = Tape::now() - start - (OwnTime::seconds() - own);

  auto drawn = run->drawn();
  const Lock lock(libtorch::limit_mutex());
  if (tape_.is_closed() || !begun.records || !run->can_run_again()) return true;
  for (std::size_t i = 0; i < defined.size(); ++i) {
    if (defined[i]._version() != versions[i]) return true;
  }
  auto producer = std::make_unique<Producer>(*new libtorch::CallForm(function, defined));
  producer->seconds = producer->call.form().learnt.seconds = std::max(seconds, 0.0);
  std::int64_t made = 0;
  const std::vector<at::Tensor> results = call.results();
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (tape_.add_function_result(*producer, results[i], static_cast<std::int16_t>(i), *run)) {
      made += producer->outputs.back().value->size;
    }
  }
  if (producer->outputs.empty()) return true;
  if (drawn) {
    producer->drawn = std::make_unique<const libtorch::Drawn>(
        libtorch::Drawn{.before = {}, .unseen = std::move(drawn), .is_known = true});
  }
  for (Value* value : begun.pinned) {
    producer->inputs.push_back({value, value->size, Producer::Use::kRead});
    tape_.read(*producer, *value);
  }
  CallNote& note = begun.note_for_plans;
  if (tape_.follows()) {
    if (tape_.takes_notes()) CallMeter(tape_, begun.read()).tell(note);
    // What it made was there before the tape knew that it can be made again.
    note.beside -= made;
    note.seconds = producer->seconds;
    begun.number = tape_.begin_call(key_of_function(call.name, begun.read()), begun.read());
  }
  begun.is_ended = true;
  begun.unpin();
  note.again = tape_.add(std::move(producer), Tape::now());
  if (begun.number) tape_.end_call(*begun.number, note);
  if (options_.paranoid) tape_.drop_all();
  return true;
}

}  // namespace reprise::tape
