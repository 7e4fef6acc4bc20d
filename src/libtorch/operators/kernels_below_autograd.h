// Kernels of ours on CustomRNGKeyId, which is below autograd and Python's keys and which no tensor has. A fallback there
// would be passed over by operators with a kernel for all backends, so each operator gets a kernel of its own.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace reprise::libtorch {

inline constexpr c10::DispatchKey kKeyBelowAutograd = c10::DispatchKey::CustomRNGKeyId;

// They stay until the process ends. From any thread.
class KernelsBelowAutograd {
 public:
  explicit KernelsBelowAutograd(c10::KernelFunction kernel) : kernel_(std::move(kernel)) {}
  void add(const c10::OperatorHandle& op);
  // To all operators that may run whole, those of libraries that were loaded since the last call as well. Costs next to
  // nothing where there are none.
  void add_to_all();

 private:
  class Newcomers;

  const c10::KernelFunction kernel_;
  std::mutex mutex_;
  std::vector<c10::RegistrationHandleRAII> registrations_;
  std::once_flag listens_;
  std::mutex adding_;
  std::shared_ptr<Newcomers> newcomers_;
};

}  // namespace reprise::libtorch
