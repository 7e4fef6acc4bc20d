#include "tape/recorder.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "libtorch/autograd/engine.h"
#include "libtorch/memory/counting_allocator.h"
#include "libtorch/memory/memory_limit.h"
#include "libtorch/operators/operator_effects.h"
#include "libtorch/operators/operator_schemas.h"
#include "libtorch/operators/own_draws.h"
#include "tape/begun_call.h"
#include "tape/function_run.h"
#include "tape/observation.h"
#include "tape/own_time.h"

namespace reprise::tape {
namespace {

using libtorch::OperatorCall;
using libtorch::OperatorFacts;
using Lock = std::unique_lock<libtorch::LimitMutex>;

// What is sparse or nested is copied by some operators that make views of other tensors.
bool is_strided(const c10::IValue& argument) {
  if (!argument.isTensor() || !argument.toTensor().defined()) return false;
  const at::Tensor& tensor = argument.toTensor();
  return tensor.layout() == c10::kStrided && !tensor.is_nested();
}

// Operators that make of a new tensor what a factory could have made. Like a factory's it may be
// filled further in ways that are not seen.
bool makes_new_in_place(std::string_view name) {
  return name == "aten::fill_" || name == "aten::zero_" || name == "aten::normal_" ||
         name == "aten::uniform_" || name == "aten::random_" || name == "aten::exponential_";
}

// Operators that write to all elements of what they are given without a look at them.
bool overwrites(const OperatorCall& call, std::size_t argument) {
  const std::string_view name = call.schema().name();
  if (name.starts_with("aten::rrelu_with_noise") && argument == 1) {
    return call.arguments()[4].toBool();  // in training
  }
  if (call.schema().arguments()[argument].is_out()) return true;
  return argument == 0 &&
         (name == "aten::copy_" || name == "aten::bernoulli_" || makes_new_in_place(name));
}

// A number on the host that kernels of other devices read when they are called.
bool is_host_number(const at::Tensor& tensor) {
  constexpr std::size_t kMostBytes = 64;
  return libtorch::is_plain(tensor, c10::kCPU) && tensor.dim() == 0 &&
         tensor.storage().nbytes() <= kMostBytes;
}

// From one device to another: its source may be memory that is filled anew before the copy is made.
bool copies_across(const OperatorCall& call) {
  const std::string_view name = call.schema().name();
  return name == "aten::copy_" || name == "aten::_to_copy" || name == "aten::_copy_from";
}

// Written without a word in the schema. Results do not depend on running statistics, which do
// depend on what they were.
bool is_statistic(const c10::Argument& argument) {
  return argument.alias_info() == nullptr && argument.name().starts_with("running_");
}

// Whether the call has results in memory of their own, and these are not known to be small.
bool has_own_results(const OperatorCall& call, const libtorch::CallForms::Found& found) {
  if (found.form != nullptr && found.form->learnt.makes_little) return false;
  return std::ranges::count(call.schema().returns(), nullptr, &c10::Argument::alias_info) != 0;
}

constexpr std::int64_t kMostCopied = 16 << 10;

}  // namespace

// Of a tensor that is not plain, what it is made of has its bytes while the operator runs.
void Recorder::begin_part(const c10::Storage& storage, bool is_written, BegunCall& begun) {
  Cell* const cell = Tape::cell_of(storage);
  if (cell == nullptr) return;
  begun.pin(*cell, storage);
  if (is_written) begun.written_parts.push_back({storage, cell->value});
}

// Values are pinned before any is restored, or one would go for another.
void Recorder::begin(OperatorCall& call, const OperatorFacts& facts, BegunCall& begun) {
  const auto arguments = call.arguments();
  const auto is_written = [&](std::size_t argument) {
    return std::ranges::any_of(facts.writes, [&](const OperatorFacts::Write& write) {
      return write.argument == argument && write.happens(arguments);
    });
  };
  Weighing* const weighing = tape_.weighing() != nullptr && libtorch::current_backward_id() >= 0
                                 ? tape_.weighing()
                                 : nullptr;
  libtorch::visit_arguments(arguments, [&](const at::Tensor& tensor, std::size_t argument, int) {
    if (!tensor.defined()) return;
    if (!tape_.manages(tensor)) {
      if (tape_.device_side() != nullptr && is_host_number(tensor) && !copies_across(call)) {
        Value& number = tape_.host_number(tensor);
        tape_.pin(number);
        begun.pinned.push_back(&number);
        return;
      }
      begun.records = false;
      return libtorch::visit_storages(tensor, [&](const c10::Storage& storage) {
        begin_part(storage, is_written(argument), begun);
      });
    }
    Cell& cell = *tape_.value_of(tensor).cell;
    begun.pin(cell, tensor.storage());
    if (weighing != nullptr && cell.value->watch != Value::kUnwatched) {
      weighing->hold(cell.value->watch, tensor.storage());
    }
    if (cell.may_change_unseen()) begun.records = false;
  });
  for (std::size_t i = 0; !begun.found.is_comparable && i < arguments.size(); ++i) {
    if (!libtorch::may_go_deeper(arguments[i])) continue;
    begun.records = false;
    libtorch::visit_deeper(arguments[i], [&](const c10::Storage& storage) {
      begin_part(storage, is_written(i), begun);
    });
  }
  if (weighs()) begun.key = libtorch::key_of(call, begun.found);
  if (tape_.follows()) {
    begun.key = libtorch::key_of(call, begun.found);
    if (tape_.reads_told(begun.read())) begun.number = tape_.begin_call(begun.key, begun.read());
  }
  begun.log_begin();
  for (Value* value : begun.pinned) tape_.restore(*value);
  if (DeviceSide* const side = tape_.device_side()) {
    for (Value* value : begun.pinned) side->used(*value);
  }
  if (facts.changes_shape || facts.unrepeatable) begun.records = false;
  if (facts.communicates) {
    begun.records = false;
    for (Value* value : begun.pinned) tape_.make_root(*value);
    if (DeviceSide* const side = tape_.device_side()) side->keep(call);
  }
  note_writes(call, facts, begun);
  if (begun.records) take_down(call, begun);
  const auto protect = [](Value& old) {
    if (old.producer == nullptr) old.cell->tape.protect_readers(old);
  };
  for (const auto& write : begun.writes) protect(tape_.value_of(write.tensor));
  for (const auto& part : begun.written_parts) protect(*Tape::cell_of(part.storage)->value);
}

// What the call will write to, and whether its results can be made again after that. For that, a
// small root keeps its old contents, such as the state of an observer that quantization has.
void Recorder::note_writes(OperatorCall& call, const OperatorFacts& facts, BegunCall& begun) {
  const auto arguments = call.arguments();
  c10::SmallVector<Value*, 4> kept;
  for (const OperatorFacts::Write& write : facts.writes) {
    // A tensor that is given another shape or memory: no bytes change.
    if (facts.writes_no_data) break;
    if (!write.happens(arguments)) continue;
    const c10::Argument& declared = call.schema().arguments()[write.argument];
    const bool statistic = is_statistic(declared);
    // What is written unseen may be read as well.
    if (declared.alias_info() == nullptr && !statistic) begun.records = false;
    std::int16_t slot = 0;
    libtorch::visit_arguments(arguments, [&](const at::Tensor& tensor, std::size_t argument, int) {
      if (!tensor.defined()) return;
      const std::int16_t mine = slot++;
      if (argument != write.argument || !tape_.manages(tensor)) return;
      const bool covers = libtorch::covers_storage(tensor) && overwrites(call, argument);
      // The old contents of a root are lost to those who read them, and of memory that is written
      // through two arguments each would have a copy of its own.
      Value& old = tape_.value_of(tensor);
      const auto uses = std::ranges::count(begun.pinned, &old);
      bool lost = old.producer == nullptr && (statistic ? uses > 1 : !covers || uses > 1);
      if (lost && uses == 1 && old.size <= kMostCopied && has_own_results(call, begun.found)) {
        kept.push_back(&old);
        lost = false;
      }
      const bool twice = std::ranges::any_of(begun.writes, [&](const BegunCall::Write& other) {
        return libtorch::share_memory(other.tensor, tensor);
      });
      if (lost || twice) begun.records = false;
      begun.writes.push_back({tensor, mine, covers, &old, statistic});
    });
  }
  begun.records = begun.records && std::ranges::all_of(kept, [this](Value* old) {
                    return tape_.keep_contents(*old);
                  });
}

void Recorder::take_down(const OperatorCall& call, BegunCall& begun) {
  libtorch::CallForm& form =
      begun.found.form != nullptr ? *begun.found.form : forms_.add(call, begun.found);
  begun.producer = std::make_unique<Producer>(form);
  begun.is_reader = true;
  for (Value* value : begun.pinned) {
    begun.producer->inputs.push_back({value, value->size, Producer::Use::kRead});
  }
  for (const BegunCall::Write& write : begun.writes) {
    Producer::Input& input = begun.producer->inputs[static_cast<std::size_t>(write.slot)];
    // An `out=` that is read as well has to hold what it held.
    const bool is_scratch =
        (write.covers || write.is_statistic) && std::ranges::count(begun.pinned, write.old) == 1;
    input.use = is_scratch ? Producer::Use::kScratch : Producer::Use::kUpdate;
    if (input.use == Producer::Use::kScratch) input.value = nullptr;
  }
  for (const Producer::Input& input : begun.producer->inputs) {
    if (input.value != nullptr) tape_.read(*begun.producer, *input.value);
  }
}

void Recorder::end(OperatorCall& call, const OperatorFacts& facts, BegunCall& begun) {
  Producer* const producer = begun.records ? begun.producer.get() : nullptr;
  // New tensors are filled in ways that are not seen.
  Producer* const maker = facts.makes_new ? nullptr : producer;
  for (const auto& write : begun.writes) {
    Cell* const cell = Tape::cell_of(write.tensor);
    // It was given other memory, or is one of several views of what has its new value already.
    if (cell == nullptr || cell->value != write.old) continue;
    const bool was_root = write.old->producer == nullptr;
    Value& value = cell->tape.new_version(*cell);
    // An `out=` may have been given another shape, with old bytes behind it.
    const bool covers = write.covers && libtorch::covers_storage(write.tensor);
    if (covers) value.defined = value.size;
    const bool can_be_made = write.covers
                                 ? covers && !(was_root && makes_new_in_place(call.schema().name()))
                                 : !was_root && !write.is_statistic;
    value.width = static_cast<std::uint8_t>(write.tensor.element_size());
    if (maker != nullptr && cell->own && can_be_made) {
      tape_.set_producer(value, *maker, write.slot);
    }
  }
  for (const auto& part : begun.written_parts) {
    Cell* const cell = Tape::cell_of(part.storage);
    if (cell != nullptr && cell->value == part.old) cell->tape.new_version(*cell);
  }
  begun.is_ended = true;
  begun.unpin();
  const auto results = call.results();
  const auto& declared = call.schema().returns();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const bool is_alias = declared[i].alias_info() != nullptr;
    const auto add = [&](const at::Tensor& tensor, int element) {
      if (!tensor.defined()) return;
      if (!tape_.manages(tensor)) return keep_shapes(tensor);
      // One that has a cell shares an argument's memory.
      if (!is_alias && Tape::cell_of(tensor) == nullptr) {
        const bool is_shrunk = !facts.makes_new && tape_.shrink(tensor);
        tape_.add_result(is_shrunk ? nullptr : maker, tensor, static_cast<std::int16_t>(i),
                         static_cast<std::int16_t>(element));
        if (facts.leaves_bytes_unset) tape_.value_of(tensor).defined = 0;
      }
      if (tape_.may_be_read_by_pointer(tensor)) Tape::keep_for_pointers(tensor.storage());
    };
    if (results[i].isTensor()) {
      add(results[i].toTensor(), -1);
    } else if (results[i].isTensorList()) {
      const auto list = results[i].toListRef();
      for (std::size_t k = 0; k < list.size(); ++k) add(list[k].toTensor(), static_cast<int>(k));
    }
  }
  if (producer == nullptr) return;
  if (weighs()) weigh(call, begun);
  const bool made_much = makes_much(call, begun);
  producer->call.form().learnt.makes_little = !made_much;
  if (tape_.follows() && made_much && !begun.number) {
    begun.number = tape_.begin_call(begun.key, begun.read());
  }
  begun.is_reader = false;
  begun.note_for_plans.again = tape_.add(std::move(begun.producer), begun.now, begun.logged);
}

namespace {

thread_local const c10::FunctionSchema* running = nullptr;

thread_local Tape* running_on = nullptr;

class Running {
 public:
  Running(const c10::FunctionSchema& schema, Tape& tape)
      : outer_(std::exchange(running, &schema)), outer_tape_(std::exchange(running_on, &tape)) {}
  ~Running() {
    running = outer_;
    running_on = outer_tape_;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  const c10::FunctionSchema* outer_;
  Tape* outer_tape_;
};

}  // namespace

std::string Recorder::current_operator() {
  return running != nullptr ? running->name() : "an allocation outside of operators";
}

Tape* Recorder::current_tape() { return running_on; }

// The operator itself. Seconds that it took; on an accelerator those that such calls took so far.
double Recorder::run(OperatorCall& call, const OperatorFacts& facts, BegunCall& begun, Lock& lock) {
  std::optional<CallOnDevice> on_device;
  if (DeviceSide* const side = tape_.device_side()) {
    on_device.emplace(*side, call, begun.signature_of(call));
  }
  std::optional<CallMeter> meter;
  if (tape_.takes_notes()) meter.emplace(tape_, begun.read());
  // Reads the report, so it begins while this thread still has the lock.
  std::optional<KernelRun> kernel;
  if (!on_device) kernel.emplace(tape_, libtorch::cpu_levels().live());
  // Nor may another thread replay from a value that is half overwritten.
  if (!begun.writes_what_others_read()) lock.unlock();
  std::optional<libtorch::OwnDraws> draws;
  if (facts.draws_random && begun.producer != nullptr) draws.emplace(call, facts);
  // Its kernel may have threads that allocate.
  std::optional<libtorch::LimitLoan> loan;
  if (lock.owns_lock()) loan.emplace();
  begun.is_running = true;
  const double own = OwnTime::seconds();
  const double start = Tape::now();
  if (on_device) {
    on_device->proceed(facts);
  } else {
    call.proceed();
  }
  double seconds = (begun.now = Tape::now()) - start - (OwnTime::seconds() - own);
  begun.on_host = seconds;
  kernel.reset();
  loan.reset();
  if (draws) begun.note(draws->drawn());
  if (!lock.owns_lock()) lock.lock();
  CallNote& note = begun.note_for_plans;
  if (meter) meter->tell(note);
  begun.log_run();
  Producer* const producer = begun.producer.get();
  if (on_device) {
    seconds = begun.learn(*on_device);
    if (producer != nullptr) producer->seconds = seconds;
  } else if (producer != nullptr) {
    double& least = producer->call.form().learnt.seconds;
    producer->seconds = least = std::min(least, seconds);
  }
  note.seconds = note.again = producer != nullptr ? producer->seconds : seconds;
  return seconds;
}

void Recorder::intercept(OperatorCall& call) {
  if (Weighing* const weighing = tape_.weighing()) weighing->attach();
  const OperatorFacts& facts = call.facts();
  const Running here(call.schema(), tape_);
  // Views and questions about sizes read no bytes.
  if (facts.metadata_only || (facts.writes_no_data && !facts.changes_memory)) {
    DeviceSide* const side = tape_.device_side();
    if (side != nullptr && call.schema().name() == "aten::record_stream") {
      const Lock lock(libtorch::limit_mutex());
      return side->record_stream(call);
    }
    if (facts.writes_no_data) return note_views(call);
    answer_for_dropped(call);
    return;
  }
  if (FunctionRun::current != nullptr && !(facts.only_views && is_strided(call.arguments()[0]))) {
    FunctionRun::current->note(call, facts);
  }
  if (facts.copies_lazily) return copy_at_once(call);
  if (facts.only_views && is_strided(call.arguments()[0])) {
    note_gradient(call);
    return note_views(call);
  }
  Lock lock(libtorch::limit_mutex());
  // The step has ended, and something that it started goes on.
  if (tape_.is_closed()) return;
  if (tape_.device_side() != nullptr) tape_.device_side()->refuse_graph(call);
  BegunCall begun(tape_);
  begun.found = forms_.find(call, tape_.device().type());
  if (is_little(call, facts, begun.found)) return pass_by(call, *begun.found.form, begun, lock);
  begin(call, facts, begun);
  std::optional<ObservedCall> observed;
  if (options_.observer) observed.emplace(tape_, call);
  const double seconds = run(call, facts, begun, lock);
  end(call, facts, begun);
  begun.log_end();
  if (begun.number) tape_.end_call(*begun.number, begun.note_for_plans);
  if (observed) {
    c10::SmallVector<std::int16_t, 2> written;
    for (const auto& write : begun.writes) written.push_back(write.slot);
    if (DeviceSide* const side = tape_.device_side()) side->of_budget.late->next(begun.span);
    observed->tell(*options_.observer, call, {written.data(), written.size()}, seconds);
  }
  if (options_.paranoid) {
    tape_.drop_all();
  }
  begun.count_own(begun.on_host);
}

}  // namespace reprise::tape
