// What is remembered of a saved tensor in place of the tensor: enough to tell whether a
// recomputation saved the same one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <reprise/checkpoint.h>

#include <cstdint>
#include <string>

#include "region/foreign.h"

namespace reprise::region {

struct Metadata {
  c10::DimVector sizes;
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::Device device{c10::kCPU};

  static Metadata of(const at::Tensor& tensor);
  bool operator==(const Metadata& other) const {
    return dtype == other.dtype && device == other.device && sizes == other.sizes;
  }
  bool matches(const at::Tensor& tensor) const {
    return dtype == tensor.scalar_type() && device == tensor.device() &&
           (tensor.is_nested() ? sizes.empty() : tensor.sizes() == c10::IntArrayRef(sizes));
  }
  // For saved tensor `index`, which is now `tensor`. Refers to both.
  Mismatch::Difference difference(std::size_t index, const at::Tensor& tensor) const;
  // Zeros of that form, in next to no memory: for a reader that does not look at them.
  at::Tensor of_nothing() const;
  // "Float [8, 16] on cpu"
  std::string describe() const;
};

// XXH3 of the tensor's elements in logical order, its shape and dtype. Reads the tensor on the
// host. The same number for all tensors that Python dispatches (FakeTensor, DTensor): they have no
// memory of their own, and would see operators on them.
std::uint64_t hash_values(const at::Tensor& tensor);

}  // namespace reprise::region
