// What shape functions refuse: sizes made of unchecked numbers would be of networks that cannot
// run, or divide by zero.
#include <c10/util/Exception.h>

#include <algorithm>

#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {

void check_numbers(const char* op, const char* name, at::IntArrayRef values, std::size_t dims,
                   std::int64_t least) {
  TORCH_CHECK(values.size() == 1 || values.size() == dims, op, ": ", name, " is ", values,
              "; it must be one number or ", dims);
  TORCH_CHECK(std::ranges::all_of(values, [&](std::int64_t each) { return each >= least; }), op,
              ": ", name, " is ", values, "; it must be at least ", least);
}

void check_dims(const char* op, const at::Tensor& x, std::int64_t least, std::int64_t most) {
  TORCH_CHECK(x.dim() >= least && x.dim() <= most, op, ": the input's sizes are ", x.sizes(),
              "; there must be from ", least, " to ", most, " of them");
}

void check_no_empty_size(const char* op, const at::Tensor& x, std::size_t spared) {
  const at::IntArrayRef sizes = x.sizes().slice(spared);
  TORCH_CHECK(std::ranges::find(sizes, 0) == sizes.end(), op, ": the input's sizes are ", x.sizes(),
              "; but for a batch they must be above 0");
}

void check_sizes(const char* op, const char* name, const OptionalTensor& parameter,
                 at::IntArrayRef sizes) {
  TORCH_CHECK(!is_given(parameter) || parameter->sizes() == sizes, op, ": the sizes of ", name,
              " are ", parameter->sizes(), "; they must be ", sizes);
}

std::int64_t windows_in(const char* op, std::int64_t given, std::int64_t padding,
                        std::int64_t reach, std::int64_t stride) {
  const std::int64_t room = given + 2 * padding;
  TORCH_CHECK(room >= reach, op, ": a window reaches over ", reach, ", but the padded input has ",
              room);
  return (room - reach) / stride + 1;
}

}  // namespace reprise::libtorch
