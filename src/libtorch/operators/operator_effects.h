// Word of what operators are about to do besides computing results: write to a tensor, draw random
// numbers. For scopes that must put either back, such as the regions of checkpoint().
//
// Only operators that write or draw (operator_facts.h) are intercepted; all others cost nothing
// while an observer is in force. For that, a dispatch key of its own falls through for every
// operator but those, is part of the thread's state inside an EffectScope, and stands above
// autograd: a write is told before anything of the operator has run. It is another key than that of
// the operator interceptor. Composites of LibTorch are not told, their parts are. Inside other
// libraries' operators, calls are told too; inside LibTorch's, what is written to in passing is
// memory of their own, and is told or not.
//
// Not told: writes past the dispatcher, through data_ptr() in a program's own code; changes of what
// stands around the data (t_, resize_, requires_grad_).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>

#include "libtorch/base/backends_only.h"
#include "libtorch/base/thread_state.h"

namespace reprise::libtorch {

struct OperatorFacts;

// The generator that a call with these arguments draws from: the one it is given, or the default
// one of the device of its first tensor; none if it does not draw, or its device has no generators.
std::optional<at::Generator> generator_of_draw(const OperatorFacts& facts,
                                               c10::ArrayRef<c10::IValue> arguments);

// Called before the operator runs, on the thread that calls it, which may be one of autograd's that
// works for the scope. An exception leaves the operator undone. Each answers whether no observer
// further out needs to know.
class EffectObserver {
 public:
  virtual ~EffectObserver() = default;
  // `tensor` has a storage, and is about to be written to.
  virtual bool before_write(const at::Tensor& tensor) = 0;
  // Random numbers are about to be drawn from `generator`, which is not the CPU's default one.
  virtual bool before_draw(const at::Generator& generator) = 0;

  // The next one further out, as long as it exists.
  std::shared_ptr<EffectObserver> outer() const { return outer_.lock(); }

 private:
  friend class EffectScope;
  std::weak_ptr<EffectObserver> outer_;
};

// No observer is told of what happens in this scope: what hooks do to tensors that a function saves
// is not the function's doing.
class UnobservedScope {
 public:
  UnobservedScope() {
    if (c10::impl::tls_local_dispatch_key_set().included_.has(kEffectKey))
      excluded_.emplace(kEffectKey);
  }

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> excluded_;
};

// A thread that includes these keys is asked at every operator that writes or draws. EffectScope and
// DrawStreamScope include them.
c10::DispatchKeySet keys_of_effects();

// Tells the observers in force on this thread of a draw that no operator makes: the generator's
// state is about to be set.
void tell_of_draw(const at::Generator& generator);

// Makes an observer the innermost one of `state`, which the caller pushes (ThreadStateScope) for as
// long as this scope lives.
class EffectScope {
 public:
  EffectScope(ThreadState& state, std::shared_ptr<EffectObserver> observer);

 private:
  c10::impl::IncludeDispatchKeyGuard included_;
};

// Inside an EffectScope: whether an operator that runs on this thread right now writes to anything,
// or to this tensor's memory. Autograd saves some arguments before the operator has written them
// (the noise of rrelu_with_noise): what is saved there has no value yet.
bool is_writing();
bool is_writing_to(const at::Tensor& tensor);

// Inside this scope nothing counts as being written to. For work on the results of an operator that
// has written them, before it has returned.
class WritesDoneScope {
 public:
  WritesDoneScope();
  ~WritesDoneScope();
  WritesDoneScope(const WritesDoneScope&) = delete;
  WritesDoneScope& operator=(const WritesDoneScope&) = delete;

 private:
  const void* const writing_;
};

}  // namespace reprise::libtorch
