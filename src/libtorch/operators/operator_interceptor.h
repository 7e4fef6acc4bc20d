// Sees each operator call below autograd, and may answer it in the operator's place.
//
// An interceptor is in force for a scope of one thread. Every operator that reaches a kernel inside
// (forward operators, views, in-place changes, factory functions; what composites such as linear
// are made of, not the composites themselves) is shown to it with its arguments, before autograd's
// node is attached to the results. Interceptors nest: the innermost is asked first, its proceed()
// asks the next one, and the last one's runs the operator. Operators that an interceptor calls
// itself are seen by the outer ones only. Operators that run inside another operator's kernel are
// part of that call and are not seen.
//
// While no scope is open an operator costs nothing extra.
//
// LibTorch has no interface for this. Two ways are built in, with one contract:
// - "fake": a boxed fallback on DispatchKey::Fake, the last key above the backends, which
//   LibTorch leaves free so far.
// - "generic": TESTING_ONLY_GenericMode, above autograd, where composites are let through to their
//   parts. A part then runs on through autograd with CustomRNGKeyId added to its keys, a key below
//   autograd at which the interceptor is called.
// The first that is free is taken at first use; REPRISE_INTERCEPTOR=fake|generic in the environment
// forces one.
//
// Under a Python dispatch mode (torch.utils._python_dispatch) "fake" sees what the mode calls,
// "generic" does not. Up to LibTorch 2.12, where Python's key comes after Fake, "fake" does so by
// CustomRNGKeyId. There it sees the parts of factory functions that a mode calls, such as normal_ of randn.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "libtorch/base/thread_state.h"

namespace c10 {
class OperatorHandle;
}  // namespace c10
namespace reprise::detail {
struct FunctionCall;
}  // namespace reprise::detail

namespace reprise::libtorch {

class LimitKeeper;
class OwnDraws;
struct OperatorFacts;

// One call of one operator, on its way down. Valid until intercept() returns.
class OperatorCall {
 public:
  OperatorCall(const c10::OperatorHandle& handle, const OperatorFacts& facts,
               c10::DispatchKeySet below, std::vector<c10::IValue>& stack);
  OperatorCall(const OperatorCall&) = delete;
  OperatorCall& operator=(const OperatorCall&) = delete;

  const c10::OperatorHandle& handle() const { return handle_; }
  const c10::FunctionSchema& schema() const { return schema_; }
  // As facts_of() gives them.
  const OperatorFacts& facts() const { return facts_; }

  // Until the call is done.
  at::ArrayRef<c10::IValue> arguments() const {
    return at::ArrayRef<c10::IValue>(stack_.data() + (stack_.size() - argument_count_),
                                     argument_count_);
  }
  // In place of one of them, before the call is done.
  void replace_argument(std::size_t argument, c10::IValue value);
  // Runs the next interceptor, or the operator. Once.
  void proceed();
  // The arguments as they are now, for a call that may fail and be made again: kernels take them
  // off the stack, also where they throw. proceed() may come again after put_back().
  struct Kept {
    std::vector<c10::IValue> arguments;
    std::size_t below;
    const InterceptorLink* next;
  };
  Kept keep() const;
  void put_back(const Kept& kept);
  // Takes these as the results; nothing further down runs. In place of proceed().
  void answer(at::ArrayRef<c10::IValue> results);
  bool done() const { return done_; }
  // Once the call is done.
  at::ArrayRef<c10::IValue> results() const;

  // For the bridge: asks this interceptor and those around it.
  void run(const InterceptorLink& link);

 private:
  friend class OwnDraws;
  void run_operator();

  const c10::OperatorHandle& handle_;
  const OperatorFacts& facts_;
  const c10::FunctionSchema& schema_;
  const std::size_t argument_count_;
  c10::DispatchKeySet below_;
  std::vector<c10::IValue>& stack_;
  const InterceptorLink* next_ = nullptr;
  // Stands around the operator itself.
  OwnDraws* draws_ = nullptr;
  bool done_ = false;
};

class OperatorInterceptor {
 public:
  virtual ~OperatorInterceptor() = default;
  // May be called on several threads at once. A call that is not done afterwards proceeds. An
  // exception leaves the operator call as one of the operator's own would.
  virtual void intercept(OperatorCall& call) = 0;
  // A custom function is called (reprise/selective.h), whose operators are intercepted all
  // the same. False: it is not this interceptor's business. Else it has called `proceed` once,
  // which asks those around it, or runs the function.
  virtual bool intercept_function(detail::FunctionCall&, const std::function<void()>& /*proceed*/) {
    return false;
  }
  // Calls `run` once. What it runs, such as a compiled graph, calls no operator that is seen.
  virtual void around_unseen(const std::function<void()>& run) { run(); }
};

enum class Reach {
  // The code of this thread inside the scope, but no backward that it runs.
  kFunction,
  // Also every backward call that is made inside the scope, on whatever threads.
  kBackwardAsWell,
};

struct InterceptorLink {
  std::shared_ptr<OperatorInterceptor> interceptor;
  std::shared_ptr<const InterceptorLink> outer;
  Reach reach;
  // The backward call in which the scope was opened; -1 outside of any.
  std::int64_t backward;

  // Set where the scope ended before one that was opened inside of it, which then also takes off
  // what this scope has left on the thread.
  struct Left {
    std::shared_ptr<c10::ThreadLocalDebugInfo> before;
    bool switched;
  };
  mutable std::shared_ptr<const Left> left = nullptr;
};

class OperatorInterceptorScope {
 public:
  // `limit`: for whose limit of memory the thread works inside (limited_work.h), if for any.
  explicit OperatorInterceptorScope(std::shared_ptr<OperatorInterceptor> interceptor,
                                    Reach reach = Reach::kFunction,
                                    const LimitKeeper* limit = nullptr);
  ~OperatorInterceptorScope();
  OperatorInterceptorScope(const OperatorInterceptorScope&) = delete;
  OperatorInterceptorScope& operator=(const OperatorInterceptorScope&) = delete;

  // Whether a scope that was opened later on this thread is still open.
  bool is_inside_out() const;

 private:
  // Before in_force_.
  std::shared_ptr<const InterceptorLink> link_;
  ThreadStateScope in_force_;
  // Whether this scope switched the dispatch key on.
  bool switched_;
};

// Shows the operators that a kernel calls on this thread to this interceptor, and to no other one.
class KernelInterceptorScope {
 public:
  explicit KernelInterceptorScope(std::shared_ptr<OperatorInterceptor> interceptor);
  KernelInterceptorScope(const KernelInterceptorScope&) = delete;
  KernelInterceptorScope& operator=(const KernelInterceptorScope&) = delete;

 private:
  ThreadStateScope in_force_;
  c10::impl::LocalDispatchKeySet local_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// The first one in force here of `link` and those around it.
const InterceptorLink* link_in_force(const InterceptorLink* link);

// The innermost interceptor in force on this thread; null if there is none.
const InterceptorLink* innermost_interceptor();

// Calls `run` once, inside the around_unseen() of all that are in force on this thread.
void run_unseen(const std::function<void()>& run);

// The thread's dispatch keys, but for the one that diverts calls to interceptors.
c10::impl::LocalDispatchKeySet keys_without_interceptors();

// Takes one interceptor out of force, for code that it is not to see. Another one may take its
// place among the others.
class WithoutInterceptor {
 public:
  explicit WithoutInterceptor(const OperatorInterceptor& interceptor,
                              std::shared_ptr<OperatorInterceptor> instead = nullptr);

 private:
  ThreadStateScope in_force_;
};

// "fake" or "generic". Registers with LibTorch at first use, which no other thread's operators may
// overlap: LibTorch reads its tables without a lock. Throws UsageError if REPRISE_INTERCEPTOR is
// another word, or if LibTorch uses the keys itself.
std::string_view operator_interceptor_variant();

}  // namespace reprise::libtorch
