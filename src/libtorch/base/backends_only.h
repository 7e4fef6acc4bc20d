// While it lives, this thread's operators go straight to their backends: no interceptor sees them,
// and autograd, autocast, functorch and Python have no part in them.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace reprise::libtorch {

// The key of operator_effects.h: free in LibTorch, and above autograd.
constexpr c10::DispatchKey kEffectKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

class BackendsOnly {
 public:
  BackendsOnly();
  // `but`: what of that has a part in the operators that kernels call.
  explicit BackendsOnly(c10::DispatchKeySet but);
  BackendsOnly(const BackendsOnly&) = delete;
  BackendsOnly& operator=(const BackendsOnly&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace reprise::libtorch
