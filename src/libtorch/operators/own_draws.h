// Random draws of one operator call that no other thread comes between, and that disturb no other
// thread when the call is made again: the kernel is given a generator of its own, a copy of the one
// that it would have drawn from.
//
// A kernel that takes no generator (native_dropout's) draws through operators that do. These are
// the calls that are given copies then.
//
// A generator's lock is held only while a kernel runs that was given its copy. Who holds
// limit_mutex() lends it meanwhile, since other threads allocate with a generator's lock held.
#pragma once

#include <ATen/core/Generator.h>
#include <reprise/random_state.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_interceptor.h"

namespace reprise::libtorch {

// What is to be known to draw the same again.
struct Drawn {
  // Copies of the generators from before each draw, in order.
  std::vector<at::Generator> before;
  // A kernel drew in a way that cannot be seen: from this generator, which was in this state.
  std::optional<std::pair<at::Generator, RandomState>> unseen;
  // False if the operator itself was not run: another interceptor has answered.
  bool is_known = false;
};

class OwnDraws {
 public:
  // Before the call proceeds: stands around the operator itself, after all interceptors. Where one
  // of those has done the same already, both share.
  OwnDraws(OperatorCall& call, const OperatorFacts& facts);
  ~OwnDraws();
  OwnDraws(const OwnDraws&) = delete;
  OwnDraws& operator=(const OwnDraws&) = delete;

  // After the call.
  Drawn drawn() const { return shared_.drawn_; }

 private:
  friend class OperatorCall;
  void run(OperatorCall& call);
  void run_with_copy(OperatorCall& call, const at::Generator& generator);
  void run_inside(OperatorCall& call);

  class Inside;
  OperatorCall& call_;
  const OperatorFacts& facts_;
  OwnDraws& shared_;
  Drawn drawn_;
};

// While it lives, the operators that a kernel calls on this thread draw from copies of these, in
// order.
class DrawsAgain {
 public:
  explicit DrawsAgain(const std::vector<at::Generator>& before);

 private:
  KernelInterceptorScope scope_;
};

}  // namespace reprise::libtorch
