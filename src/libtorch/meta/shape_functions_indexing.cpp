// Shapes of embeddings and of what picks elements by index.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <reprise/error.h>

#include <array>
#include <string_view>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;

bool is_half_width(const Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
}

Tensor index_select_shape(const Tensor& x, std::int64_t dim, const Tensor& index) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[c10::maybe_wrap_dim(dim, x.dim())] = index.numel();
  return contiguous_result(x, sizes);
}

Tensor& index_select_out_shape(const Tensor& x, std::int64_t dim, const Tensor& index,
                               Tensor& out) {
  return resized_to(out, index_select_shape(x, dim, index));
}

Tensor embedding_dense_backward_shape(const Tensor& grad, const Tensor&, std::int64_t rows,
                                      std::int64_t, bool) {
  return contiguous_result(grad, {rows, grad.size(-1)});
}

// --- bags of embeddings

using Bag = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr std::int64_t kBagOfSums = 0;
constexpr std::int64_t kBagOfMaxima = 2;

// Without the rows' maxima, whose places backward needs, little is kept.
template <bool kForwardOnly>
Bag embedding_bag_shape(const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool,
                        std::int64_t mode, bool, const OptionalTensor& scales, bool includes_last,
                        std::int64_t padding) {
  std::int64_t bags = offsets.size(0) - (includes_last ? 1 : 0);
  const bool rows_are_summed = weight.stride(1) == 1 &&
                               (weight.scalar_type() == at::kFloat || is_half_width(weight)) &&
                               padding < 0 && (!is_given(scales) || scales->stride(0) == 1);
  const bool fast = mode == kBagOfSums && rows_are_summed;
  // Both are made with an element more, which is cut off later.
  const Tensor bag_of_index = contiguous_result(indices, {fast ? 0 : indices.size(0) + 1});
  if (!fast) bag_of_index.resize_({indices.size(0)});
  const Tensor bag_sizes = contiguous_result(indices, offsets.sizes());
  const Tensor sums = contiguous_result(weight, {bags, weight.size(1)});
  // Left as made where nobody is going to read them.
  if (kForwardOnly && mode == kBagOfSums) bags = offsets.size(0);
  bag_sizes.resize_({bags});
  const std::vector<std::int64_t> maxima = mode == kBagOfMaxima
                                               ? std::vector<std::int64_t>{bags, weight.size(1)}
                                               : std::vector<std::int64_t>{bags};
  return {sums, bag_of_index, bag_sizes, contiguous_result(indices, maxima)};
}

Tensor embedding_bag_dense_backward_shape(const Tensor& grad, const Tensor&, const Tensor&,
                                          const Tensor&, const Tensor&, std::int64_t rows, bool,
                                          std::int64_t, const OptionalTensor&, std::int64_t) {
  return contiguous_result(grad, {rows, grad.size(1)});
}

Tensor embedding_bag_scales_backward_shape(const Tensor& grad, const Tensor&, const Tensor& indices,
                                           const Tensor&, const Tensor&, std::int64_t,
                                           std::int64_t) {
  return contiguous_result(grad, {indices.size(0)});
}

// --- others

Tensor take_shape(const Tensor& x, const Tensor& index) {
  return contiguous_result(x, index.sizes());
}

Tensor flip_shape(const Tensor& x, at::IntArrayRef) { return result_like(x); }

// Two pieces that are joined, once for each dimension.
Tensor roll_shape(const Tensor& x, at::IntArrayRef shifts, at::IntArrayRef dims) {
  if (dims.empty()) return contiguous_result(x, x.sizes());
  if (x.numel() == 0) return result_like(x);
  Tensor rolled = x;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::int64_t size = x.size(dims[i]);
    const std::int64_t start = ((size - shifts[i]) % size + size) % size;
    rolled = at::cat(
        {rolled.narrow(dims[i], start, size - start), rolled.narrow(dims[i], 0, start)}, dims[i]);
  }
  return rolled;
}

Tensor unfold_backward_shape(const Tensor& grad, at::IntArrayRef sizes, std::int64_t, std::int64_t,
                             std::int64_t) {
  return contiguous_result(grad, sizes);
}

Tensor repeat_interleave_shape(const Tensor& repeats, std::optional<std::int64_t> count) {
  if (!count) {
    throw UsageError(
        "aten::repeat_interleave takes its result's size from values, which meta tensors do not "
        "have; give output_size");
  }
  return contiguous_result(repeats, {*count});
}

Tensor searchsorted_shape(const Tensor&, const Tensor& x, bool narrow, bool,
                          std::optional<std::string_view>, const OptionalTensor&) {
  return contiguous_result(x, x.sizes(), narrow ? at::kInt : at::kLong);
}

Tensor bucketize_shape(const Tensor& x, const Tensor&, bool narrow, bool) {
  return contiguous_result(x, x.sizes(), narrow ? at::kInt : at::kLong);
}

Tensor logcumsumexp_shape(const Tensor& x, std::int64_t) { return contiguous_result(x, x.sizes()); }

// They fill what they are given.
void running_extreme_shape(const Tensor&, Tensor&, Tensor&, std::int64_t) {}

constexpr std::array kIndexing = {
    shape_function<&index_select_shape>("aten::index_select"),
    shape_function<&index_select_out_shape>("aten::index_select.out"),
    shape_function<&embedding_dense_backward_shape>("aten::embedding_dense_backward"),
    shape_function<&embedding_bag_shape<false>>("aten::_embedding_bag"),
    shape_function<&embedding_bag_shape<true>>("aten::_embedding_bag_forward_only"),
    shape_function<&embedding_bag_dense_backward_shape>("aten::_embedding_bag_dense_backward"),
    shape_function<&embedding_bag_scales_backward_shape>(
        "aten::_embedding_bag_per_sample_weights_backward"),
    shape_function<&take_shape>("aten::take"),
    shape_function<&flip_shape>("aten::flip"),
    shape_function<&roll_shape>("aten::roll"),
    shape_function<&unfold_backward_shape>("aten::unfold_backward"),
    shape_function<&repeat_interleave_shape>("aten::repeat_interleave.Tensor"),
    shape_function<&searchsorted_shape>("aten::searchsorted.Tensor"),
    shape_function<&bucketize_shape>("aten::bucketize.Tensor"),
    shape_function<&logcumsumexp_shape>("aten::_logcumsumexp"),
    shape_function<&running_extreme_shape>("aten::_cummax_helper"),
    shape_function<&running_extreme_shape>("aten::_cummin_helper"),
};

}  // namespace

ShapeGroup indexing_shapes() { return kIndexing; }

}  // namespace reprise::libtorch
