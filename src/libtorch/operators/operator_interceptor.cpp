// How calls are diverted: see the header. The dispatch key that is switched on for a thread is
// switched off while a call is handled, so that kernels' own calls stay inside; where an outer
// interceptor waits, it is switched on again for what the inner one calls.
#include "libtorch/operators/operator_interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <reprise/error.h>
#include <torch/library.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "libtorch/autograd/engine.h"
#include "libtorch/base/leaving_errors.h"
#include "libtorch/base/tensor_form.h"
#include "libtorch/base/versions.h"
#include "libtorch/memory/caught_refusal.h"
#include "libtorch/memory/limited_work.h"
#include "libtorch/operators/kernels_below_autograd.h"
#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/own_draws.h"

namespace reprise::libtorch {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

constexpr DispatchKeySet below(DispatchKey key) { return {DispatchKeySet::FULL_AFTER, key}; }

// Calls are diverted by this key of the thread.
DispatchKey diverting_key = DispatchKey::Undefined;

}  // namespace

const InterceptorLink* link_in_force(const InterceptorLink* link) {
  while (link != nullptr && link->reach == Reach::kFunction &&
         link->backward != current_backward_id()) {
    link = link->outer.get();
  }
  return link;
}

namespace {

// The diverting key is already off.
void handle(const c10::OperatorHandle& op, const OperatorFacts& facts, DispatchKeySet keys,
            Stack& stack) {
  const InterceptorLink* link = innermost_interceptor();
  if (link == nullptr) return op.redispatchBoxed(keys, &stack);
  with_leaving_errors([&] {
    const ErrorsStayInside inside;
    const AccountedWork accounted;
    OperatorCall(op, facts, keys, stack).run(*link);
  });
}

// Whether the operator is run by its parts. Some have parts and a backend's own kernel as well
// (silu_backward), which is then what runs.
bool runs_as_parts(const c10::OperatorHandle& op, const OperatorFacts& facts, DispatchKeySet keys) {
  if (!facts.composite) return false;
  const c10::BackendComponent backend = keys.highestBackendKey();
  return backend == c10::BackendComponent::InvalidBit ||
         !op.hasKernelForDispatchKey(
             c10::toRuntimePerBackendFunctionalityKey(DispatchKey::Dense, backend));
}

constexpr DispatchKey kAbove = DispatchKey::TESTING_ONLY_GenericMode;
// Keys at which calls are diverted; all of them are off while a call is handled.
constexpr DispatchKeySet kDiverting({DispatchKey::Fake, kAbove, kKeyBelowAutograd});

void at_key_below(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet next = keys & below(kKeyBelowAutograd);
  const OperatorFacts& facts = facts_of(op);
  if (runs_as_parts(op, facts, next)) return op.redispatchBoxed(next, stack);
  const c10::impl::ExcludeDispatchKeyGuard off(kDiverting);
  handle(op, facts, next, *stack);
}

KernelsBelowAutograd& kernels_below_autograd() {
  static auto* kernels =
      new KernelsBelowAutograd(c10::KernelFunction::makeFromBoxedFunction<&at_key_below>());
  return *kernels;
}

// Where autograd's keys are off (inference mode, AutoDispatchBelowAutograd) composites come this
// far down: they are let through to their parts.
void at_fake(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet next = (keys & below(DispatchKey::Fake)).remove(kKeyBelowAutograd);
  if (kPythonsKeyComesAfterFake && next.has(DispatchKey::Python)) {
    // Python's handlers run with this key off. Their calls are diverted by the other one.
    kernels_below_autograd().add_to_all();
    const c10::impl::IncludeDispatchKeyGuard on(kKeyBelowAutograd);
    return op.redispatchBoxed(next, stack);
  }
  const OperatorFacts& facts = facts_of(op);
  if (runs_as_parts(op, facts, next)) return op.redispatchBoxed(next, stack);
  const c10::impl::ExcludeDispatchKeyGuard off(kDiverting);
  handle(op, facts, next, *stack);
}

// Backends whose kernels come before the key below autograd.
constexpr DispatchKeySet kBackendsBefore({DispatchKey::MkldnnCPU, DispatchKey::Sparse,
                                          DispatchKey::SparseCsr, DispatchKey::NestedTensor});

void at_generic_mode(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet next = keys & below(kAbove);
  const OperatorFacts& facts = facts_of(op);
  if (runs_as_parts(op, facts, next) ||
      (facts.casts && next.has_any(c10::autocast_dispatch_keyset))) {
    return op.redispatchBoxed(next, stack);
  }
  std::optional<c10::impl::ExcludeDispatchKeyGuard> off;
  // Choosing the backend starts from the arguments' keys and would lose the added one. Operators
  // that do it (factory functions) have nothing to do with autograd.
  if (facts.chooses_backend) {
    off.emplace(kAbove);
    return handle(op, facts, next, *stack);
  }
  if (!op.hasKernelForDispatchKey(kKeyBelowAutograd)) kernels_below_autograd().add(op);
  // What autograd's own kernel calls (the copy of what an operator in place is about to change) is
  // seen as well; what is called by kernels that come before the added key is not.
  if (next.has_any(kBackendsBefore)) off.emplace(kAbove);
  op.redispatchBoxed(next.add(kKeyBelowAutograd), stack);
}

template <auto kFallback>
void register_fallback(DispatchKey key) {
  static auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<kFallback>());
}

bool is_free(DispatchKey key) {
  return !c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key);
}

struct Variant {
  std::string_view name;
  bool (*available)();
  void (*install)();
};

constexpr Variant kVariants[] = {
    {"fake",
     [] {
       return is_free(DispatchKey::Fake) &&
              (!kPythonsKeyComesAfterFake || is_free(kKeyBelowAutograd));
     },
     [] {
       register_fallback<&at_fake>(DispatchKey::Fake);
       // For operators that a handler of Python's registers, and calls.
       if (kPythonsKeyComesAfterFake) register_fallback<&at_key_below>(kKeyBelowAutograd);
       diverting_key = DispatchKey::Fake;
     }},
    {"generic", [] { return is_free(kAbove) && is_free(kKeyBelowAutograd); },
     [] {
       kernels_below_autograd().add_to_all();
       register_fallback<&at_generic_mode>(kAbove);
       diverting_key = kAbove;
     }},
};

std::string_view install() {
  const char* const forced = std::getenv("REPRISE_INTERCEPTOR");
  bool known = forced == nullptr;
  for (const Variant& variant : kVariants) {
    if (forced != nullptr && variant.name != forced) continue;
    known = true;
    if (!variant.available()) continue;
    variant.install();
    return variant.name;
  }
  if (!known) {
    throw UsageError("REPRISE_INTERCEPTOR is '" + std::string(forced) +
                     "'; it must be 'fake' or 'generic', or be unset");
  }
  throw UsageError(
      std::string("reprise cannot intercept operators: another library has registered fallbacks on "
                  "the dispatch keys it needs (") +
      (forced != nullptr ? forced : "Fake; TESTING_ONLY_GenericMode and CustomRNGKeyId") +
      "); do not load it in this process" +
      (forced != nullptr ? ", or unset REPRISE_INTERCEPTOR" : ""));
}

std::shared_ptr<const InterceptorLink> link_to(std::shared_ptr<OperatorInterceptor> interceptor,
                                               Reach reach) {
  operator_interceptor_variant();
  const ThreadState* const state = current_state();
  return std::make_shared<const InterceptorLink>(
      InterceptorLink{std::move(interceptor), state != nullptr ? state->interceptors : nullptr,
                      reach, current_backward_id()});
}

std::shared_ptr<ThreadState> state_with(std::shared_ptr<const InterceptorLink> outer,
                                        const LimitKeeper* limit = nullptr) {
  auto state = copy_of_current_state();
  state->interceptors = std::move(outer);
  if (limit != nullptr) state->work_for(*limit);
  return state;
}

std::shared_ptr<ThreadState> state_with_alone(std::shared_ptr<OperatorInterceptor> interceptor) {
  return state_with(std::make_shared<const InterceptorLink>(
      InterceptorLink{std::move(interceptor), nullptr, Reach::kFunction, current_backward_id()}));
}

// Lets the outer interceptors see what the inner one calls.
class OuterInForce {
 public:
  explicit OuterInForce(const std::shared_ptr<const InterceptorLink>& outer)
      : in_force_(state_with(outer)), keys_(local_.included_, local_.excluded_ - kDiverting) {}

 private:
  ThreadStateScope in_force_;
  c10::impl::LocalDispatchKeySet local_ = c10::impl::tls_local_dispatch_key_set();
  c10::impl::ForceDispatchKeyGuard keys_;
};

std::shared_ptr<const InterceptorLink> chain_without(
    const std::shared_ptr<const InterceptorLink>& link, const OperatorInterceptor& interceptor,
    std::shared_ptr<OperatorInterceptor> instead) {
  if (link == nullptr) return nullptr;
  const bool is_it = link->interceptor.get() == &interceptor;
  if (is_it && instead == nullptr) return link->outer;
  // `left` may be set by another thread.
  return std::make_shared<const InterceptorLink>(InterceptorLink{
      .interceptor = is_it ? instead : link->interceptor,
      .outer = is_it ? link->outer : chain_without(link->outer, interceptor, std::move(instead)),
      .reach = link->reach,
      .backward = link->backward});
}

std::shared_ptr<ThreadState> state_without(const OperatorInterceptor& interceptor,
                                           std::shared_ptr<OperatorInterceptor> instead) {
  auto state = copy_of_current_state();
  state->interceptors = chain_without(state->interceptors, interceptor, std::move(instead));
  return state;
}

}  // namespace

const InterceptorLink* innermost_interceptor() {
  const ThreadState* state = current_state();
  return state == nullptr ? nullptr : link_in_force(state->interceptors.get());
}

namespace {

void run_unseen_from(const InterceptorLink* link, const std::function<void()>& run) {
  if (link == nullptr) return run();
  const InterceptorLink* outer = link_in_force(link->outer.get());
  link->interceptor->around_unseen([&] { run_unseen_from(outer, run); });
}

}  // namespace

void run_unseen(const std::function<void()>& run) { run_unseen_from(innermost_interceptor(), run); }

c10::impl::LocalDispatchKeySet keys_without_interceptors() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  if (diverting_key != DispatchKey::Undefined) keys.included_ = keys.included_ - kDiverting;
  return keys;
}

WithoutInterceptor::WithoutInterceptor(const OperatorInterceptor& interceptor,
                                       std::shared_ptr<OperatorInterceptor> instead)
    : in_force_(state_without(interceptor, std::move(instead))) {}

OperatorCall::OperatorCall(const c10::OperatorHandle& handle, const OperatorFacts& facts,
                           c10::DispatchKeySet below, std::vector<c10::IValue>& stack)
    : handle_(handle),
      facts_(facts),
      schema_(handle.schema()),
      argument_count_(schema_.arguments().size()),
      below_(below),
      stack_(stack) {
  for (std::size_t i = 0; i < argument_count_; ++i)
    settle_list_type(torch::jit::peek(stack_, i, argument_count_));
}

void OperatorCall::replace_argument(std::size_t argument, c10::IValue value) {
  torch::jit::peek(stack_, argument, argument_count_) = std::move(value);
}

at::ArrayRef<c10::IValue> OperatorCall::results() const {
  return torch::jit::last(stack_, schema_.returns().size());
}

void OperatorCall::run(const InterceptorLink& link) {
  const InterceptorLink* const next_before = std::exchange(next_, link_in_force(link.outer.get()));
  {
    std::optional<OuterInForce> outer;
    if (next_ != nullptr) outer.emplace(link.outer);
    link.interceptor->intercept(*this);
    if (!done_) proceed();
  }
  next_ = next_before;
}

void OperatorCall::proceed() {
  TORCH_INTERNAL_ASSERT(!done_, "an operator call proceeds once");
  if (next_ != nullptr) {
    const c10::impl::ExcludeDispatchKeyGuard off(diverting_key);
    return run(*next_);
  }
  if (draws_ != nullptr) {
    draws_->run(*this);
  } else {
    run_operator();
  }
}

void OperatorCall::run_operator() {
  const KernelMayCatch kernel;
  handle_.redispatchBoxed(below_, &stack_);
  kernel.rethrow();
  done_ = true;
}

OperatorCall::Kept OperatorCall::keep() const {
  const auto now = arguments();
  return {now.vec(), stack_.size() - now.size(), next_};
}

void OperatorCall::put_back(const Kept& kept) {
  stack_.resize(kept.below);
  stack_.insert(stack_.end(), kept.arguments.begin(), kept.arguments.end());
  next_ = kept.next;
}

void OperatorCall::answer(at::ArrayRef<c10::IValue> results) {
  TORCH_INTERNAL_ASSERT(!done_, "an operator call is answered once");
  TORCH_INTERNAL_ASSERT(results.size() == schema_.returns().size(), schema_.name(),
                        " was answered with ", results.size(), " results");
  torch::jit::drop(stack_, argument_count_);
  stack_.insert(stack_.end(), results.begin(), results.end());
  done_ = true;
}

OperatorInterceptorScope::OperatorInterceptorScope(std::shared_ptr<OperatorInterceptor> interceptor,
                                                   Reach reach, const LimitKeeper* limit)
    : link_(link_to(std::move(interceptor), reach)),
      in_force_(state_with(link_, limit)),
      switched_(!c10::impl::tls_is_dispatch_key_included(diverting_key)) {
  if (switched_) c10::impl::tls_set_dispatch_key_included(diverting_key, true);
}

namespace {

const InterceptorLink* innermost_link() {
  const ThreadState* const state = current_state();
  return state != nullptr ? state->interceptors.get() : nullptr;
}

}  // namespace

bool OperatorInterceptorScope::is_inside_out() const {
  const InterceptorLink* link = innermost_link();
  if (link == link_.get()) return false;
  while (link != nullptr && link != link_.get()) link = link->outer.get();
  return link != nullptr;
}

OperatorInterceptorScope::~OperatorInterceptorScope() {
  const auto take_off = [](const InterceptorLink::Left& left) {
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(left.before);
    if (left.switched) c10::impl::tls_set_dispatch_key_included(diverting_key, false);
  };
  const InterceptorLink::Left mine{in_force_.leave(), switched_};
  if (is_inside_out()) {
    link_->left = std::make_shared<const InterceptorLink::Left>(mine);
    return;
  }
  // Another thread than the one it was opened on is none of its business.
  if (innermost_link() != link_.get()) return;
  take_off(mine);
  while (const InterceptorLink* const outer = innermost_link()) {
    if (outer->left == nullptr) break;
    take_off(*std::exchange(outer->left, nullptr));
  }
}

KernelInterceptorScope::KernelInterceptorScope(std::shared_ptr<OperatorInterceptor> interceptor)
    : in_force_(state_with_alone(std::move(interceptor))),
      local_(c10::impl::tls_local_dispatch_key_set()),
      keys_((local_.included_ - kDiverting).add(diverting_key), local_.excluded_ - kDiverting) {}

std::string_view operator_interceptor_variant() {
  static const std::string_view variant = install();
  return variant;
}

}  // namespace reprise::libtorch
