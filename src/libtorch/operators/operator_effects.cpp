// Registration. Kernels are put in place when the first scope opens, and for operators that come
// later (a library of custom operators is loaded) when the next one does: LibTorch tells of new
// operators under the lock that registering a kernel would take.
//
// Other threads may be running operators meanwhile. What changes in an operator's dispatch table is
// the slot of this file's key, which they do not read unless they are inside a scope themselves.
#include "libtorch/operators/operator_effects.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/zero_ops.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libtorch/memory/managed_memory.h"
#include "libtorch/operators/batch_statistics.h"
#include "libtorch/operators/draw_stream.h"
#include "libtorch/operators/operator_facts.h"

namespace reprise::libtorch {
namespace {

using c10::Dispatcher;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// Short, as every kernel has a copy.
constexpr const char* kDebugName = "reprise effects";

bool is_of_libtorch(const OperatorHandle& op) {
  return std::string_view(op.schema().name()).substr(0, 6) == "aten::";
}

template <class F>
void visit_tensors(const IValue& value, const F& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isList()) {
    for (const IValue& element : value.toListRef()) visit_tensors(element, visit);
  }
}

class Observers {
 public:
  explicit Observers(EffectObserver& innermost) : innermost_(innermost) {}

  void tell_write(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return;
    // Observers copy the bytes before they are changed.
    const HeldMemory held(tensor);
    tell([&](EffectObserver& observer) { return observer.before_write(tensor); });
  }
  void tell_draw(const at::Generator& generator) const {
    tell([&](EffectObserver& observer) { return observer.before_draw(generator); });
  }

 private:
  template <class F>
  void tell(const F& settled) const {
    if (settled(innermost_)) return;
    for (auto observer = innermost_.outer(); observer != nullptr; observer = observer->outer()) {
      if (settled(*observer)) return;
    }
  }

  EffectObserver& innermost_;
};

// Where an operator without a generator of its own draws from: its first tensor's device, or the
// device that it is asked to make a tensor on.
c10::Device device_of(c10::ArrayRef<IValue> arguments) {
  std::optional<c10::Device> device;
  for (const IValue& argument : arguments) {
    if (device) break;
    visit_tensors(argument, [&](const at::Tensor& tensor) {
      if (!device && tensor.defined()) device = tensor.device();
    });
    if (argument.isDevice()) device = argument.toDevice();
  }
  return device.value_or(c10::kCPU);
}

// The CPU's default generator is known to every observer.
void tell_draw(const OperatorFacts& facts, c10::ArrayRef<IValue> arguments,
               const Observers& observers) {
  const auto generator = generator_of_draw(facts, arguments);
  if (generator && *generator != at::globalContext().defaultGenerator(c10::kCPU)) {
    observers.tell_draw(*generator);
  }
}

// The operators that write and run on this thread, as a list in their stack frames.
struct Writing {
  Writing() : outer(std::exchange(innermost, this)) {}
  ~Writing() { innermost = outer; }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

  static thread_local const Writing* innermost;
  const Writing* const outer;
  c10::SmallVector<const c10::StorageImpl*, 2> storages;
};
thread_local const Writing* Writing::innermost = nullptr;

void tell(const OperatorHandle& op, const Stack& stack, Writing& writing) {
  const ThreadState* state = current_state();
  if (state == nullptr || state->effects == nullptr) return;
  const Observers observers(*state->effects);
  const OperatorFacts& facts = facts_of(op);
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  for (const OperatorFacts::Write& write : facts.writes) {
    if (!write.happens(arguments)) continue;
    visit_tensors(arguments[write.argument], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.has_storage()) return;
      writing.storages.push_back(tensor.storage().unsafeGetStorageImpl());
      observers.tell_write(tensor);
    });
  }
  if (facts.draws_random) tell_draw(facts, arguments, observers);
}

struct Kernel final : c10::OperatorKernel {
  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kEffectKey);
    Writing writing;
    std::optional<c10::impl::ExcludeDispatchKeyGuard> not_inside;
    if (is_of_libtorch(op)) not_inside.emplace(kEffectKey);
    const auto run = [&] {
      tell(op, *stack, writing);
      op.redispatchBoxed(below, stack);
    };
    const ThreadState* const state = current_state();
    if (state == nullptr) return run();
    const OperatorFacts& facts = facts_of(op);
    if (facts.draws_random) {
      const auto draws = state->draws;
      if (draws == nullptr) return run();
      return draw_from(*draws, facts, *stack, op.schema().arguments().size(), run);
    }
    const auto statistics = state->statistics;
    if (statistics == nullptr) return run();
    call_with_statistics(*statistics, op.schema(), *stack, run);
  }
};

// The same for an operator of LibTorch that writes to its first argument and is used all the time,
// in and between other operators' insides: spared are the stack and the conversions to and from it.
template <class Op, class Signature = typename Op::schema>
struct TypedKernel;
template <class Op, class... Args>
struct TypedKernel<Op, at::Tensor&(at::Tensor&, Args...)> {
  static at::Tensor& call(DispatchKeySet keys, at::Tensor& self, Args... args) {
    c10::impl::ExcludeDispatchKeyGuard not_inside(kEffectKey);
    if (const ThreadState* state = current_state(); state != nullptr && state->effects != nullptr) {
      Observers(*state->effects).tell_write(self);
    }
    return Op::redispatch(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kEffectKey), self,
                          args...);
  }
};

template <class... Ops>
std::optional<c10::KernelFunction> typed_kernel_among(const c10::OperatorName& name) {
  std::optional<c10::KernelFunction> kernel;
  const auto offer = [&]<class Op>() {
    if (name.name != Op::name || name.overload_name != Op::overload_name) return;
    kernel = c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN((TypedKernel<Op>::call)));
  };
  (offer.template operator()<Ops>(), ...);
  return kernel;
}

c10::KernelFunction kernel_for(const c10::OperatorName& name) {
  namespace ops = at::_ops;
  auto typed = typed_kernel_among<ops::copy_, ops::fill__Scalar, ops::zero_, ops::relu_,
                                  ops::add__Tensor, ops::mul__Tensor, ops::div__Tensor>(name);
  if (typed) return *std::move(typed);
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>());
}

// The operators that have a kernel here, and those that have come since anybody looked.
class Registry final {
 public:
  Registry();

  // What to include; nothing where the key is taken.
  DispatchKeySet keys() {
    if (news_.load(std::memory_order_acquire)) register_new();
    return keys_;
  }

 private:
  class Listener;
  void register_new();

  DispatchKeySet keys_;
  std::atomic<bool> news_{false};
  // Held while kernels are registered, which takes LibTorch's lock.
  std::mutex registering_;
  // An operator that is defined anew has its kernel still.
  std::unordered_set<OperatorHandle> registered_;
  std::vector<c10::RegistrationHandleRAII> handles_;
  // Taken under LibTorch's lock.
  std::mutex mutex_;
  std::vector<OperatorHandle> new_;
};

class Registry::Listener final : public c10::OpRegistrationListener {
 public:
  explicit Listener(Registry& registry) : registry_(registry) {}

  void onOperatorRegistered(const OperatorHandle& op) override {
    std::lock_guard<std::mutex> lock(registry_.mutex_);
    registry_.new_.push_back(op);
    registry_.news_.store(true, std::memory_order_release);
  }
  void onOperatorDeregistered(const OperatorHandle& op) override {
    std::lock_guard<std::mutex> lock(registry_.mutex_);
    std::erase(registry_.new_, op);
  }

 private:
  Registry& registry_;
};

Registry::Registry() {
  Dispatcher& dispatcher = Dispatcher::singleton();
  if (dispatcher.hasBackendFallbackForDispatchKey(kEffectKey)) {
    TORCH_WARN("checkpoint(): the dispatch key ", c10::toString(kEffectKey),
               " is taken in this process. So a region's writes to older state are not undone, and "
               "generators that the region was not told of are not replayed");
    return;
  }
  keys_ = DispatchKeySet(kEffectKey);
  handles_.push_back(
      dispatcher.registerFallback(kEffectKey, c10::KernelFunction::makeFallthrough(), kDebugName));
  handles_.push_back(dispatcher.addRegistrationListener(std::make_unique<Listener>(*this)));
}

void Registry::register_new() {
  // A second thread waits here: its scope needs the kernels too.
  std::lock_guard<std::mutex> lock(registering_);
  if (!news_.load(std::memory_order_relaxed)) return;
  std::vector<OperatorHandle> news;
  {
    std::lock_guard<std::mutex> taking(mutex_);
    news.swap(new_);
  }
  handles_.reserve(handles_.size() + news.size());
  for (const OperatorHandle& op : news) {
    const OperatorFacts& facts = facts_of(op);
    if (!facts.writes_or_draws() || facts.writes_no_data) continue;
    if (is_of_libtorch(op) && op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
      continue;
    }
    if (!registered_.insert(op).second) continue;
    handles_.push_back(Dispatcher::singleton().registerImpl(op.operator_name(), kEffectKey,
                                                            kernel_for(op.operator_name()),
                                                            std::nullopt, nullptr, kDebugName));
  }
  std::lock_guard<std::mutex> done(mutex_);
  if (new_.empty()) news_.store(false, std::memory_order_release);
}

}  // namespace

DispatchKeySet keys_of_effects() {
  // Never destroyed: libraries deregister their operators when the process ends.
  static auto* const registry = new Registry;
  return registry->keys();
}

std::optional<at::Generator> generator_of_draw(const OperatorFacts& facts,
                                               c10::ArrayRef<IValue> arguments) {
  if (!facts.draws_random) return std::nullopt;
  if (facts.generator != OperatorFacts::kNone && arguments[facts.generator].isGenerator()) {
    return arguments[facts.generator].toGenerator();
  }
  const c10::Device device = device_of(arguments);
  if (device.is_meta()) return std::nullopt;
  try {
    return at::globalContext().defaultGenerator(device);
  } catch (const c10::Error&) {
    return std::nullopt;  // a backend without generators
  }
}

void tell_of_draw(const at::Generator& generator) {
  const ThreadState* state = current_state();
  if (state == nullptr || state->effects == nullptr) return;
  if (generator == at::globalContext().defaultGenerator(c10::kCPU)) return;
  Observers(*state->effects).tell_draw(generator);
}

bool is_writing() {
  for (const Writing* writing = Writing::innermost; writing != nullptr; writing = writing->outer) {
    if (!writing->storages.empty()) return true;
  }
  return false;
}

bool is_writing_to(const at::Tensor& tensor) {
  if (Writing::innermost == nullptr || !tensor.has_storage()) return false;
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  for (const Writing* writing = Writing::innermost; writing != nullptr; writing = writing->outer) {
    if (std::ranges::find(writing->storages, storage) != writing->storages.end()) return true;
  }
  return false;
}

WritesDoneScope::WritesDoneScope() : writing_(std::exchange(Writing::innermost, nullptr)) {}
WritesDoneScope::~WritesDoneScope() { Writing::innermost = static_cast<const Writing*>(writing_); }

EffectScope::EffectScope(ThreadState& state, std::shared_ptr<EffectObserver> observer)
    : included_(keys_of_effects()) {
  // `state` is a copy of the one in force, whose observer becomes the next one further out.
  if (state.effects != nullptr || !observer->outer_.expired()) observer->outer_ = state.effects;
  state.effects = std::move(observer);
}

}  // namespace reprise::libtorch
