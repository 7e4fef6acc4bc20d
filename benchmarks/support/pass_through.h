// A step whose operators are all seen, by an interceptor that lets them pass.
#pragma once

#include <memory>
#include <utility>

#include "benchmarks/support/race.h"
#include "libtorch/operators/operator_interceptor.h"

namespace reprise::bench {

struct PassThrough final : libtorch::OperatorInterceptor {
  void intercept(libtorch::OperatorCall&) override {}
};

inline Step seen(Step step) {
  return [step = std::move(step), interceptor = std::make_shared<PassThrough>()] {
    const libtorch::OperatorInterceptorScope scope(interceptor);
    step();
  };
}

}  // namespace reprise::bench
