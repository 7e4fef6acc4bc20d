// The fixture of the tests of what is kept: a function under a policy beside the plain one.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "tests/selective/testing.h"

namespace reprise::testing {

class KeptRightly : public ::testing::Test {
 protected:
  // `make` gives a function with fresh state; its gradients under the policy are the plain ones.
  template <class Make>
  ::testing::AssertionResult is_right(const Make& make, const OperatorPolicy& policy,
                                      SelectiveOptions options = {}) {
    const Tensors plain = gradients_of([f = make(), this] { return f(x_); }, {x_, w_});
    const CheckpointOptions region = with_policy(policy, std::move(options));
    return same_bits(gradients_of([&, f = make()] { return checkpoint(region, f, x_); }, {x_, w_}),
                     plain);
  }

  at::Tensor x_ = leaf({8, 8});
  at::Tensor w_ = leaf({8, 8});
};

}  // namespace reprise::testing
