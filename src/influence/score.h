// The sum that influence is the root of (pgac.h), in one pass without temporaries.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise::influence {

// A sum of squared products, estimated from a part of them where not all were looked at.
struct SquareSum {
  double sum = 0;
  double variance = 0;  // of `sum` as an estimate
};

// Of tensors on the CPU, of the same shape, floating point or complex.
SquareSum square_sum(const at::Tensor& g, const at::Tensor& a, std::int64_t stride);

// Of any device's, which is not waited for: a tensor there with one element, float or double.
at::Tensor square_sum_on_device(const at::Tensor& gradient, const at::Tensor& activation);

}  // namespace reprise::influence
