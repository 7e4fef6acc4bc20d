// The small work of the fine benchmarks: sin on 8 x 8, and a chain of it in which each operator
// saves one tensor. The twin of the functions in peers/operators.py.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include "benchmarks/support/race.h"

namespace reprise::bench {

inline constexpr int kChain = 100;

inline at::Tensor sin_of(const at::Tensor& x) { return x.sin(); }

inline at::Tensor sin_chain(at::Tensor x) {
  for (int i = 0; i < kChain; ++i) x = x.sin();
  return x;
}

inline at::Tensor small_leaf(c10::Device device) {
  return randn_on(device, {8, 8}).set_requires_grad(true);
}

// `f` forward and backward; the gradient does not stay, as after a step.
template <class F>
Step backward_of(c10::Device device, F f) {
  return [f, x = small_leaf(device), gradient = at::ones({8, 8}).to(device)] {
    f(x).backward(gradient);
    x.mutable_grad().reset();
  };
}

// `f` forward alone, graph and all.
template <class F>
Step forward_of(c10::Device device, F f) {
  return [f, x = small_leaf(device)] { f(x); };
}

}  // namespace reprise::bench
