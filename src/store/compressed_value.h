// One flat tensor in fewer bytes, and back: which form it takes, and the work on it by LibTorch's
// threads, in pieces that do not depend on how many there are. The forms themselves are in
// src/core.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/store.h>

#include <cstdint>

namespace reprise::store {

struct CompressedValue {
  CompressedForm form = CompressedForm::kUncompressed;
  at::Tensor memory;  // the tensor itself, or the bytes of the form
  at::ScalarType dtype = at::kFloat;
  std::int64_t elements = 0;
  std::int64_t block = 0;

  Bytes bytes() const { return Bytes(static_cast<std::int64_t>(memory.nbytes())); }
};

// `flat` as Store::park_flat() gets it. The same `stream` makes the same bits.
CompressedValue compress(const at::Tensor& flat, Compression compression, std::int64_t block,
                         std::uint64_t stream);

at::Tensor decompress(const CompressedValue& value);

constexpr bool is_lossy(CompressedForm form) { return form >= CompressedForm::kBfloat16; }
// CompressionResult::spread, of a flat tensor of floating-point numbers.
double spread(const at::Tensor& flat, std::int64_t block);

}  // namespace reprise::store
