// The blocks themselves; see blocks.h.
#include "blocks.h"

#include <cmath>

#include "benchmarks/support/device.h"

namespace reprise::bench {

BlockImpl::BlockImpl(const BlockShape& shape)
    : shape_(shape),
      norm1_(register_module("norm1",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
      norm2_(register_module("norm2",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
      qkv_(register_module("qkv", torch::nn::Linear(shape.width, 3 * shape.width))),
      proj_(register_module("proj", torch::nn::Linear(shape.width, shape.width))),
      up_(register_module("up", torch::nn::Linear(shape.width, 4 * shape.width))),
      down_(register_module("down", torch::nn::Linear(4 * shape.width, shape.width))) {}

at::Tensor BlockImpl::drop(const at::Tensor& x) const {
  return shape_.dropout > 0 ? at::dropout(x, shape_.dropout, /*train=*/true) : x;
}

at::Tensor BlockImpl::attend(const at::Tensor& x) {
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t head_width = shape_.width / shape_.heads;
  std::vector<at::Tensor> parts = qkv_->forward(x).split(shape_.width, 2);
  for (at::Tensor& part : parts) {
    part = part.view({batch, length, shape_.heads, head_width}).transpose(1, 2);
  }
  const at::Tensor scores =
      parts[0].matmul(parts[1].transpose(2, 3)) * (1 / std::sqrt(static_cast<double>(head_width)));
  const at::Tensor mixed = drop(scores.softmax(3)).matmul(parts[2]);
  return proj_->forward(mixed.transpose(1, 2).reshape({batch, length, shape_.width}));
}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const at::Tensor middle = x + drop(attend(norm1_->forward(x)));
  return middle + drop(down_->forward(at::gelu(up_->forward(norm2_->forward(middle)))));
}

void Model::drop_gradients() {
  for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
}

Model make_model(int count, const BlockShape& shape, c10::Device device) {
  torch::manual_seed(0);
  Model model;
  for (int i = 0; i < count; ++i) {
    model.blocks.emplace_back(shape);
    model.blocks.back()->to(device);
    for (const at::Tensor& parameter : model.blocks.back()->parameters()) {
      model.parameters.push_back(parameter);
    }
  }
  model.input = randn_on(device, {shape.batch, shape.length, shape.width});
  return model;
}

}  // namespace reprise::bench
