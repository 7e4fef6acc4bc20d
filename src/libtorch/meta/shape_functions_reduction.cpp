// Shapes of reductions, and of products of vectors.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>

#include <array>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;
using OptionalDtype = std::optional<at::ScalarType>;
using OptionalNumber = std::optional<at::Scalar>;
using TwoTensors = std::tuple<Tensor, Tensor>;
using TwoReferences = std::tuple<Tensor&, Tensor&>;

// No dimension given: all.
std::vector<std::int64_t> reduced_sizes(const Tensor& x, at::OptionalIntArrayRef dims, bool keep) {
  std::vector<bool> goes(static_cast<std::size_t>(x.dim()), !dims || dims->empty());
  if (dims && x.dim() > 0) {
    for (const std::int64_t dim : *dims) {
      goes[static_cast<std::size_t>(c10::maybe_wrap_dim(dim, x.dim()))] = true;
    }
  }
  std::vector<std::int64_t> sizes;
  for (std::int64_t dim = 0; dim < x.dim(); ++dim) {
    if (!goes[static_cast<std::size_t>(dim)]) {
      sizes.push_back(x.size(dim));
    } else if (keep) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

// Sums of whole numbers are of the widest.
at::ScalarType summed_dtype(const Tensor& x, OptionalDtype dtype) {
  if (dtype) return *dtype;
  return at::isIntegralType(x.scalar_type(), /*includeBool=*/true) ? at::kLong : x.scalar_type();
}

Tensor of_all_shape(const Tensor& x) { return contiguous_result(x, {}); }

Tensor prod_shape(const Tensor& x, OptionalDtype dtype) {
  return contiguous_result(x, {}, summed_dtype(x, dtype));
}

Tensor nansum_shape(const Tensor& x, at::OptionalIntArrayRef dims, bool keep, OptionalDtype dtype) {
  return contiguous_result(x, reduced_sizes(x, dims, keep), summed_dtype(x, dtype));
}

Tensor count_nonzero_shape(const Tensor& x, at::IntArrayRef dims) {
  return contiguous_result(x, reduced_sizes(x, dims, false), at::kLong);
}

Tensor deviation_shape(const Tensor& x, at::OptionalIntArrayRef dims, const OptionalNumber&,
                       bool keep) {
  return contiguous_result(x, reduced_sizes(x, dims, keep));
}

TwoTensors deviation_and_mean_shape(const Tensor& x, at::OptionalIntArrayRef dims,
                                    const OptionalNumber& correction, bool keep) {
  return {deviation_shape(x, dims, correction, keep), deviation_shape(x, dims, correction, keep)};
}

TwoTensors extremes_shape(const Tensor& x) { return {of_all_shape(x), of_all_shape(x)}; }

TwoTensors mode_shape(const Tensor& x, std::int64_t dim, bool keep) {
  const auto sizes = reduced_sizes(x, at::IntArrayRef(dim), keep);
  return {contiguous_result(x, sizes), contiguous_result(x, sizes, at::kLong)};
}

TwoReferences median_shape(const Tensor& x, std::int64_t dim, bool keep, Tensor& values,
                           Tensor& indices) {
  const auto [made, where] = mode_shape(x, dim, keep);
  return {resized_to(values, made), resized_to(indices, where)};
}

TwoReferences kth_value_shape(const Tensor& x, std::int64_t, std::int64_t dim, bool keep,
                              Tensor& values, Tensor& indices) {
  return median_shape(x, dim, keep, values, indices);
}

Tensor product_shape(const Tensor& x, const Tensor& y) {
  check_dims("dot", x, 1, 1);
  check_sizes("dot", "the other", y, x.sizes());
  return contiguous_result(x, {});
}

Tensor trace_shape(const Tensor& x) { return contiguous_result(x, {}, summed_dtype(x, {})); }

Tensor distances_shape(const Tensor& x, const Tensor& y, double, std::optional<std::int64_t>) {
  std::vector<std::int64_t> sizes =
      at::infer_size(x.sizes().slice(0, x.dim() - 2), y.sizes().slice(0, y.dim() - 2));
  sizes.push_back(x.size(-2));
  sizes.push_back(y.size(-2));
  return contiguous_result(x, sizes);
}

Tensor distances_backward_shape(const Tensor&, const Tensor& x, const Tensor& y, double,
                                const Tensor&) {
  std::vector<std::int64_t> sizes =
      at::infer_size(x.sizes().slice(0, x.dim() - 2), y.sizes().slice(0, y.dim() - 2));
  sizes.push_back(x.size(-2));
  sizes.push_back(x.size(-1));
  return contiguous_result(x, sizes);
}

constexpr std::array kReduction = {
    shape_function<&of_all_shape>("aten::max"),
    shape_function<&of_all_shape>("aten::min"),
    shape_function<&of_all_shape>("aten::median"),
    shape_function<&of_all_shape>("aten::nanmedian"),
    shape_function<&extremes_shape>("aten::_aminmax"),
    shape_function<&prod_shape>("aten::prod"),
    shape_function<&nansum_shape>("aten::nansum"),
    shape_function<&count_nonzero_shape>("aten::count_nonzero.dim_IntList"),
    shape_function<&deviation_shape>("aten::std.correction"),
    shape_function<&deviation_shape>("aten::var.correction"),
    shape_function<&deviation_and_mean_shape>("aten::std_mean.correction"),
    shape_function<&deviation_and_mean_shape>("aten::var_mean.correction"),
    shape_function<&mode_shape>("aten::mode"),
    shape_function<&median_shape>("aten::median.dim_values"),
    shape_function<&median_shape>("aten::nanmedian.dim_values"),
    shape_function<&kth_value_shape>("aten::kthvalue.values"),
    shape_function<&product_shape>("aten::dot"),
    shape_function<&product_shape>("aten::vdot"),
    shape_function<&trace_shape>("aten::trace"),
    shape_function<&distances_shape>("aten::_cdist_forward"),
    shape_function<&distances_backward_shape>("aten::_cdist_backward"),
};

}  // namespace

ShapeGroup reduction_shapes() { return kReduction; }

}  // namespace reprise::libtorch
