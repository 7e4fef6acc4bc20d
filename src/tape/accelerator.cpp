#include "tape/accelerator.h"

#include <c10/util/Exception.h>
#include <reprise/error.h>
#include <reprise/random_state.h>

#include <algorithm>
#include <utility>

#include "libtorch/memory/managed_memory.h"
#include "libtorch/memory/memory_limit.h"
#include "libtorch/operators/operator_effects.h"
#include "tape/tape.h"
#include "tape/value.h"

namespace reprise::tape {
namespace {

using libtorch::EventTimer;
using libtorch::ManagedMemory;
using libtorch::OperatorCall;
using libtorch::OperatorFacts;

// The first failure drops at least that much, since the error does not tell what was asked for.
constexpr std::int64_t kLeastGivenUp = 2 << 20;

const c10::DataPtr& memory_of(const Value& value) {
  // Of a root that is about to be written to, replays read the copy.
  return value.detached ? value.detached.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()
                        : ManagedMemory::memory_of(*value.cell);
}

std::int64_t bytes_on(c10::Device device, at::ArrayRef<c10::IValue> stack) {
  std::int64_t bytes = 0;
  libtorch::visit_arguments(stack, [&](const at::Tensor& tensor, std::size_t, int) {
    if (!tensor.defined() || tensor.device() != device || !tensor.has_storage()) return;
    bytes +=
        Accelerator::rounded(static_cast<std::int64_t>(tensor.numel() * tensor.element_size()));
  });
  return bytes;
}

// A call without tensors has its shape in its first list of whole numbers.
std::int64_t bytes_of_shape(const OperatorCall& call) {
  const auto arguments = call.arguments();
  const auto shape = std::ranges::find_if(arguments, [](const auto& a) { return a.isIntList(); });
  if (shape == arguments.end()) return 0;
  std::int64_t bytes = static_cast<std::int64_t>(sizeof(double));
  for (const std::int64_t size : shape->toIntList()) bytes *= std::max<std::int64_t>(size, 0);
  return Accelerator::rounded(bytes);
}

// Whether a call that has failed on the way can run again, because it has changed nothing but the
// memory of its results.
bool can_be_made_again(const OperatorCall& call, const OperatorFacts& facts) {
  if (facts.communicates || facts.changes_shape) return false;
  const auto arguments = call.arguments();
  return std::ranges::all_of(facts.writes, [&](const OperatorFacts::Write& write) {
    if (!write.happens(arguments)) return true;
    if (!call.schema().arguments()[write.argument].is_out()) return false;
    if (!arguments[write.argument].isTensor()) return false;
    const at::Tensor& out = arguments[write.argument].toTensor();
    std::ptrdiff_t aliases = 0;
    libtorch::visit_arguments(arguments, [&](const at::Tensor& tensor, std::size_t, int) {
      aliases += tensor.defined() && libtorch::share_memory(tensor, out) ? 1 : 0;
    });
    return aliases == 1;
  });
}

}  // namespace

thread_local const CallOnDevice* CallOnDevice::running = nullptr;
std::int64_t CallOnDevice::under_way = 0;
std::int64_t CallOnDevice::begun = 0;

void Accelerator::refuse_graph(const std::string& what) const {
  if (!device.is_recorded_by_graph()) return;
  throw UsageError(
      "MemoryBudget: " + what + " was called while a graph records the stream (device " +
      device.device().str() +
      ", CUDA graphs). A step decides while it runs what to drop and to restore, and a "
      "graph cannot repeat that. Record graphs outside of steps, or run the step "
      "without a graph");
}

void Accelerator::begin_step(bool is_noted) {
  const std::int64_t step = steps_++;
  const bool is_anew = step > 0 && step % kTimedEvery == 0;
  if (is_anew) {
    costs.begin_round();
    timer_.start();
  }
  times_ = step < kFirstTimed || is_anew || is_noted;
  if (late) late->begin(device.current_stream());
}

std::optional<EventTimer::Running> Accelerator::begin_timing(std::uint64_t signature) {
  if (!times_ || costs.is_learnt(signature)) return std::nullopt;
  return timer_.begin(device.current_stream());
}

void Accelerator::end_timing(EventTimer::Running running, std::uint64_t signature,
                             std::int64_t bytes) {
  timed_.push_back({signature, bytes});
  if (!timer_.end(std::move(running), device.current_stream())) timed_.clear();
}

void Accelerator::poll() {
  if (timed_.empty()) return;
  while (const auto span = timer_.poll()) {
    const Timed of = timed_.front();
    timed_.pop_front();
    costs.note(of.signature, of.bytes, span->seconds);
  }
  if (!timer_.works()) timed_.clear();
}

std::int64_t Accelerator::bytes_to_replay(const Producer& producer) const {
  std::int64_t bytes = 0;
  for (const Producer::Input& input : producer.inputs) {
    if (input.use != Producer::Use::kRead) bytes += Accelerator::rounded(input.bytes);
  }
  std::int64_t results = 0;
  for (const Producer::Output& output : producer.outputs) {
    if (output.value != nullptr && output.slot < 0)
      results += Accelerator::rounded(output.value->size);
  }
  return bytes +
         std::max(results, sizes.bytes(libtorch::signature_of(producer.call.form())).value_or(0));
}

void DeviceSide::used(Value& value) {
  const c10::Stream now = device().current_stream();
  if (!first_) first_ = now.id();
  has_several_ = has_several_ || now.id() != *first_;
  if (std::ranges::count(streams_, now.id()) == 0) streams_.push_back(now.id());
  if (!has_several_ || !value.has_bytes() || value.size == 0) return;
  device().lend(memory_of(value), now);
  if (value.remade_on == Value::kNowhere || value.remade_on == now.id()) return;
  libtorch::AcceleratorDevice::hold_back(
      now, c10::Stream(c10::Stream::UNSAFE, now.device(), value.remade_on));
}

void DeviceSide::keep(const OperatorCall& call) {
  libtorch::visit_arguments(call.arguments(), [&](const at::Tensor& tensor, std::size_t, int) {
    if (tensor.defined() && tensor.has_storage()) kept_.push_back(tensor.storage());
  });
}

bool DeviceSide::is_on_one_stream() const {
  return !has_several_ && (!first_ || *first_ == device().current_stream().id());
}

void DeviceSide::made_again(Value& value) const {
  value.remade_on = device().current_stream().id();
}

void DeviceSide::hand_over(Value& value) const {
  if (!has_several_ || value.remade_on == Value::kNowhere || value.size == 0) return;
  const c10::Device device = of_budget.device.device();
  const c10::Stream maker(c10::Stream::UNSAFE, device, value.remade_on);
  for (const c10::StreamId id : streams_) {
    if (id == value.remade_on) continue;
    const c10::Stream reader(c10::Stream::UNSAFE, device, id);
    of_budget.device.lend(memory_of(value), reader);
    libtorch::AcceleratorDevice::hold_back(reader, maker);
  }
}

void DeviceSide::record_stream(OperatorCall& call) {
  const auto arguments = call.arguments();
  const at::Tensor& tensor = arguments[0].toTensor();
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  const libtorch::MemoryManager* const manager = ManagedMemory::manager_of(storage);
  if (manager == nullptr) return;
  // A dropped value has no memory. Its next memory is lent when operators read it.
  device().lend(ManagedMemory::memory_of(*manager), arguments[1].toStream());
  call.answer({});
}

CallOnDevice::CallOnDevice(DeviceSide& side, OperatorCall& call, std::uint64_t signature)
    : outer_(running), side_(side), budgets_(side.of_budget), call_(call), signature_(signature) {
  budgets_.poll();
  const c10::Device device = side_.device().device();
  bytes_ = bytes_on(device, call.arguments());
  const auto known = budgets_.sizes.bytes(signature_);
  const std::int64_t wanted = known.value_or(bytes_ != 0 ? bytes_ : bytes_of_shape(call));
  if (outer_ == nullptr) {
    ++begun;
    if (under_way == 0) alone_ = begun;
  } else {
    alone_ = outer_->alone_;
  }
  // Another step that this one is inside of, or the other way round, sees the same call.
  if (outer_ == nullptr || outer_->side_.device().device() != device) {
    make_room_on(device, wanted, /*is_guess=*/!known);
    promised_ = wanted;
  }
  if (!budgets_.sizes.is_learnt(signature_)) peak_.emplace(device);
  running_ = budgets_.begin_timing(signature_);
  if (budgets_.late) observed_ = budgets_.late->start(side_.device().current_stream());
  // Nothing throws from here on: without an object no destructor would take it back.
  side_.promised += promised_;
  running = this;
  if (outer_ == nullptr) ++under_way;
}

CallOnDevice::~CallOnDevice() {
  running = outer_;
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  side_.promised -= promised_;
  if (outer_ == nullptr) --under_way;
}

void CallOnDevice::proceed(const OperatorFacts& facts) {
  if (!can_be_made_again(call_, facts)) return call_.proceed();
  const auto generator = libtorch::generator_of_draw(facts, call_.arguments());
  if (facts.draws_random && !generator) return call_.proceed();
  RandomState before;
  if (generator) before = RandomState::of_generators({&*generator, 1});
  // Kernels take their arguments off the stack, also where they fail.
  const OperatorCall::Kept kept = call_.keep();
  std::int64_t give_up = std::max(promised_, kLeastGivenUp);
  for (bool is_first = true;; is_first = false, give_up *= 2) {
    try {
      return call_.proceed();
    } catch (const c10::OutOfMemoryError&) {
      {
        // Also where this thread lends the lock.
        const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
        // The first time the allocator may find room without it.
        if (!give_up_on(side_.device().device(), give_up) && !is_first) throw;
        if (peak_) peak_.emplace(side_.device().device());
        running_.reset();
      }
      before.restore();
      call_.put_back(kept);
    }
  }
}

CallOnDevice::Learnt CallOnDevice::learn() {
  Learnt learnt{.seconds = 0,
                .bytes = bytes_ + bytes_on(side_.device().device(), call_.results()),
                .span = std::nullopt};
  const bool was_alone = alone_ == begun;
  if (peak_ && was_alone) budgets_.sizes.note(signature_, peak_->peak_above_start().count);
  peak_.reset();
  if (observed_)
    learnt.span =
        budgets_.late->end(*std::exchange(observed_, {}), side_.device().current_stream());
  if (running_) budgets_.end_timing(*std::exchange(running_, {}), signature_, learnt.bytes);
  learnt.seconds = budgets_.costs.seconds(signature_, learnt.bytes);
  return learnt;
}

}  // namespace reprise::tape
