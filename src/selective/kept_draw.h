// A draw into a tensor in place (bernoulli_, for dropout), kept as one bit an element: the
// generator draws a mask much slower than a mask is unpacked.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>

#include <memory>

#include "core/two_kinds.h"

namespace reprise::selecting {

class KeptDraw {
 public:
  // Null where a bit an element cannot hold the tensor, or is not worth it: more than two kinds of
  // elements, few elements, memory that is not contiguous or not the host's. Null also where a tape
  // manages the memory: the tape packs masks itself, and would not see the bits being written back.
  static std::shared_ptr<const KeptDraw> of(const at::Tensor& drawn);

  // Writes the values to a tensor of the same sizes and dtype. False, and nothing is written, where
  // of() would have refused the tensor's memory.
  bool write_to(const at::Tensor& tensor) const;

  Bytes bytes() const { return Bytes(bits_.numel()); }

 private:
  KeptDraw() = default;
  // On the meta device in an estimate, which counts it.
  at::Tensor bits_;
  TwoKinds kinds_;
};

}  // namespace reprise::selecting
