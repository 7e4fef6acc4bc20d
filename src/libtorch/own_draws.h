// Random draws of one operator call that no other thread comes between, and that disturb no other
// thread when the call is made again: the call is given a generator of its own, a copy of the one
// that it would have drawn from.
#pragma once

#include <ATen/core/Generator.h>

#include <mutex>

#include "libtorch/operator_facts.h"
#include "libtorch/operator_interceptor.h"

namespace reprise::libtorch {

class OwnDraws {
 public:
  // Whether the call takes a generator as an argument, and this is one that can be copied.
  static bool are_possible(const OperatorFacts& facts, const at::Generator& generator);

  // Before the call proceeds. Until this ends the generator is locked; then it is where the call
  // left its copy. Where other interceptors stand between here and the kernel, which may look at
  // the generator themselves, the call draws from it as ever.
  OwnDraws(OperatorCall& call, const OperatorFacts& facts, at::Generator generator);
  ~OwnDraws();
  OwnDraws(const OwnDraws&) = delete;
  OwnDraws& operator=(const OwnDraws&) = delete;

  // A copy from before the call.
  const at::Generator& before() const { return before_; }

 private:
  at::Generator generator_;
  std::unique_lock<std::mutex> lock_;
  const at::Generator before_;
  at::Generator own_;
};

}  // namespace reprise::libtorch
