// The two interceptors of a selective region: one that keeps in forward (caching.cpp), one that
// answers in the recomputation (answering.cpp).
#pragma once

#include <reprise/selective.h>

#include <functional>
#include <memory>
#include <utility>

#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_interceptor.h"
#include "selective/kept_results.h"

namespace reprise::selecting {

// Sees operators with ordered effects, and lets the others pass.
class OnEffects final : public libtorch::OperatorInterceptor {
 public:
  explicit OnEffects(std::function<void(libtorch::OperatorCall&)> then) : then_(std::move(then)) {}
  void intercept(libtorch::OperatorCall& call) override {
    if (call.facts().ordered_effects) then_(call);
  }

 private:
  const std::function<void(libtorch::OperatorCall&)> then_;
};

class SelectiveInterceptor : public libtorch::OperatorInterceptor {
 public:
  // A custom autograd function is called.
  virtual void call_function(detail::FunctionCall& call) = 0;
  // The region's function saves its tensor number `index` for backward.
  virtual void on_save(std::size_t index) = 0;

 protected:
  SelectiveInterceptor();
  // What policies are not asked about: it computes nothing and LibTorch calls it where it likes,
  // or it is reprise's own doing, or a cast that autocast makes. Such casts are cached, for longer
  // than a region may last, so that a recomputation makes others than forward did.
  bool is_ignored(const libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts) const;
  // Takes this one's place inside a custom function that is run. It passes on operators with
  // ordered effects.
  std::shared_ptr<libtorch::OperatorInterceptor> only_effects();

 private:
  // The dispatch keys of autocast that were off when the region began.
  const std::uint64_t autocast_off_;
};

// Stands for a custom autograd function among the operators; its address identifies it for good.
const c10::FunctionSchema& schema_of_function(const std::string& name);

std::shared_ptr<SelectiveInterceptor> make_caching(std::shared_ptr<KeptResults> kept,
                                                   SelectiveOptions options);
std::shared_ptr<SelectiveInterceptor> make_answering(std::shared_ptr<KeptResults> kept,
                                                     SelectiveOptions options);

}  // namespace reprise::selecting
