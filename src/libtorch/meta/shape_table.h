// What the files of shape functions share: the form of a table's line, the groups, and the few ways
// in which results are made.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace reprise::libtorch {

// One operator and what registers its shape function in a library.
struct ShapeFunction {
  const char* op;
  void (*add)(torch::Library& library, const char* op);
  // Where it is registered: Meta, or AutogradMeta for operators that are made of others.
  c10::DispatchKey key = c10::DispatchKey::Meta;
};

template <auto* kKernel>
constexpr ShapeFunction shape_function(const char* op) {
  return {op, [](torch::Library& library, const char* name) {
            library.impl(name, torch::CppFunction(TORCH_FN(kKernel)));
          }};
}

// For kernels of any signature.
template <c10::BoxedKernel::BoxedKernelFunction* kKernel>
constexpr ShapeFunction boxed_shape_function(const char* op) {
  return {op, [](torch::Library& library, const char* name) {
            library.impl(name, torch::CppFunction::makeFromBoxedFunction<kKernel>());
          }};
}

// For an operator that LibTorch makes of others by the device of its arguments: takes its place
// above autograd, on meta tensors only.
template <auto* kKernel>
constexpr ShapeFunction choice_by_device(const char* op) {
  ShapeFunction line = shape_function<kKernel>(op);
  line.key = c10::DispatchKey::AutogradMeta;
  return line;
}

using ShapeGroup = std::span<const ShapeFunction>;
ShapeGroup attention_shapes();
ShapeGroup convolution_shapes();
ShapeGroup cuda_attention_shapes();
ShapeGroup indexing_shapes();
ShapeGroup loss_shapes();
ShapeGroup normalization_shapes();
ShapeGroup optimizer_shapes();
ShapeGroup pointwise_shapes();
ShapeGroup pooling_shapes();
ShapeGroup random_shapes();
ShapeGroup recurrent_shapes();
ShapeGroup reduction_shapes();

// Of "aten::sum" or "aten::sum.dim_IntList".
c10::OperatorName operator_name(std::string_view op);

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;
inline bool is_given(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

// --- what shape functions refuse, as kernels do: c10::Error that names the operator

// An argument with one number, or one for each of `dims` dimensions, all at least `least`.
void check_numbers(const char* op, const char* name, at::IntArrayRef values, std::size_t dims,
                   std::int64_t least);
void check_dims(const char* op, const at::Tensor& x, std::int64_t least, std::int64_t most);
// That each but the first `spared` sizes is above zero.
void check_no_empty_size(const char* op, const at::Tensor& x, std::size_t spared);
// A parameter of these sizes, if it is given.
void check_sizes(const char* op, const char* name, const OptionalTensor& parameter,
                 at::IntArrayRef sizes);
// How often a window of `reach` elements fits in `given` and twice `padding`, once at least.
std::int64_t windows_in(const char* op, std::int64_t given, std::int64_t padding,
                        std::int64_t reach, std::int64_t stride);
// The number for a dimension of an argument as above.
inline std::int64_t at_dim(at::IntArrayRef values, std::size_t dim) {
  return values.size() == 1 ? values[0] : values[dim];
}

// --- results

// As at::empty_like: dense, in the order of `like`'s strides.
at::Tensor result_like(const at::Tensor& like, std::optional<at::ScalarType> dtype = std::nullopt);
// Contiguous, with `like`'s dtype where none is given.
at::Tensor contiguous_result(const at::Tensor& like, at::IntArrayRef sizes,
                             std::optional<at::ScalarType> dtype = std::nullopt);
// Of these sizes, in the memory format that `like` suggests: channels last or contiguous.
at::Tensor formatted_result(const at::Tensor& like, at::IntArrayRef sizes,
                            std::optional<at::ScalarType> dtype = std::nullopt);
// With the sizes, strides and, where none is given, the dtype that LibTorch's element-wise kernels
// give: broadcast, of the promoted dtype, in the order of the inputs' strides.
at::Tensor elementwise_result(at::TensorList inputs,
                              std::optional<at::ScalarType> dtype = std::nullopt);
// Gives an `out` argument the sizes and strides of what the operator would have made.
at::Tensor& resized_to(at::Tensor& out, const at::Tensor& made);

// scaled_dot_product_attention by matrix products.
at::Tensor attention_of_products(const at::Tensor& given_q, const at::Tensor& given_k,
                                 const at::Tensor& given_v, std::optional<at::Tensor> mask,
                                 double p, bool causal, std::optional<double> scale, bool grouped);
// scaled_dot_product_attention by the fused operators that CUDA has.
at::Tensor attention_as_on_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const std::optional<at::Tensor>& mask, double p, bool causal,
                                std::optional<double> scale, bool grouped);

// The dtype in which kernels of the device that is meant add up values of `dtype`.
at::ScalarType sum_dtype(at::ScalarType dtype);

}  // namespace reprise::libtorch
