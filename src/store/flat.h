// Any view of memory as one flat tensor, and back. Stores move flat tensors; sizes, strides and the
// bits that make a tensor a conjugate or a negative one stay behind in memory, in a FlatForm.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/DimVector.h>

#include <cstdint>

namespace reprise::store {

// A tensor on `storage` with the given elements. Goes past the dispatcher, so that nothing that
// watches operators sees it.
at::Tensor view_of(const c10::Storage& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
                   at::IntArrayRef sizes, at::IntArrayRef strides, std::int64_t offset);

class FlatForm {
 public:
  explicit FlatForm(const at::Tensor& tensor);

  // Elements of the flat form; zero for a tensor without any.
  std::int64_t length() const { return length_; }

  // The tensor given to the constructor as one row: its own memory, from the first element to the
  // last, if there are no gaps between them; else a copy of the elements.
  at::Tensor flatten(const at::Tensor& tensor) const;
  // The same way back.
  at::Tensor restore(const at::Tensor& flat) const;
  // Of a tensor without elements.
  at::Tensor restore_empty() const;

 private:
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::Device device_;
  c10::DimVector sizes_;
  c10::DimVector strides_;
  c10::DimVector distinct_;  // sizes without the repetitions that expand() makes
  std::int64_t span_ = 0;    // elements from the first to the last
  std::int64_t length_ = 0;  // span_, or the number of distinct elements if there are gaps
};

}  // namespace reprise::store
