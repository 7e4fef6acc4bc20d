#include "store/flat.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace reprise::store {
namespace {

constexpr c10::DispatchKeySet kLazyBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

// Whether two indices may lead to one element: some step is within the reach of smaller ones.
bool overlaps(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) steps.emplace_back(strides[i], sizes[i]);
  }
  std::sort(steps.begin(), steps.end());
  std::int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

}  // namespace

at::Tensor view_of(const c10::Storage& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
                   at::IntArrayRef sizes, at::IntArrayRef strides, std::int64_t offset) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage),
                                                   keys, dtype);
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

FlatForm::FlatForm(const at::Tensor& tensor)
    : keys_(tensor.key_set()),
      dtype_(tensor.dtype()),
      device_(tensor.device()),
      sizes_(tensor.sizes()),
      strides_(tensor.strides()) {
  if (tensor.numel() == 0) return;
  span_ = 1;
  std::int64_t elements = 1;
  distinct_ = sizes_;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (strides_[i] == 0) distinct_[i] = 1;
    span_ += (sizes_[i] - 1) * strides_[i];
    elements *= distinct_[i];
  }
  length_ = span_ <= elements || overlaps(distinct_, strides_) ? span_ : elements;
}

at::Tensor FlatForm::flatten(const at::Tensor& tensor) const {
  const c10::DispatchKeySet keys = keys_ - kLazyBits;
  if (length_ == span_) {
    return view_of(tensor.storage(), keys, dtype_, {span_}, {1}, tensor.storage_offset());
  }
  return view_of(tensor.storage(), keys, dtype_, distinct_, strides_, tensor.storage_offset())
      .contiguous()
      .view({length_});
}

at::Tensor FlatForm::restore(const at::Tensor& flat) const {
  if (length_ == span_) {
    return view_of(flat.storage(), keys_, dtype_, sizes_, strides_, flat.storage_offset());
  }
  const at::Tensor memory = at::empty({span_}, flat.options());
  view_of(memory.storage(), keys_ - kLazyBits, dtype_, distinct_, strides_, 0)
      .copy_(flat.view(distinct_));
  return view_of(memory.storage(), keys_, dtype_, sizes_, strides_, 0);
}

at::Tensor FlatForm::restore_empty() const {
  const at::Tensor memory = at::empty({0}, at::TensorOptions(device_).dtype(dtype_));
  return view_of(memory.storage(), keys_, dtype_, sizes_, strides_, 0);
}

}  // namespace reprise::store
