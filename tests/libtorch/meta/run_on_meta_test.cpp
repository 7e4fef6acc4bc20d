// Whole training steps run on meta tensors.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <thread>

#include "examples/extending/shape_function.h"
#include "libtorch/meta/lent_to_meta.h"
#include "libtorch/meta/shape_functions.h"
#include "tests/libtorch/operators/interceptor_testing.h"
#include "tests/refusal.h"

namespace reprise::libtorch {
namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("embedding", embedding);
  }
  at::Tensor forward(const at::Tensor& tokens, double p) {
    const auto x = torch::dropout(embedding(tokens), p, true);
    const auto parts = qkv(norm(x)).view({2, 5, 3, 4, 8}).permute({2, 0, 3, 1, 4});
    const auto mixed =
        torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, p, true);
    return x + torch::dropout(out(mixed.transpose(1, 2).reshape({2, 5, 32})), p, true);
  }
  at::Tensor loss(const at::Tensor& tokens, double p) {
    return torch::cross_entropy_loss(
        torch::linear(forward(tokens, p), embedding->weight).flatten(0, 1), tokens.flatten());
  }
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({32})};
  torch::nn::Linear qkv{32, 96}, out{32, 32};
  torch::nn::Embedding embedding{11, 32};
};
TORCH_MODULE(Block);

TEST(RunOnMeta, ATrainingStepOfATransformer) {
  Block block;
  torch::optim::AdamW optimizer(block->parameters());
  for (const c10::DeviceType type : {c10::kCPU, c10::kCUDA}) {
    const ShapesOfDevice of(type);
    for (const double p : {0.0, 0.1}) {
      const LentToMeta lent(block->parameters());
      run_on_meta([&] {
        const auto tokens =
            torch::empty({2, 5}, torch::TensorOptions(torch::kMeta).dtype(torch::kLong));
        block->loss(tokens, p).backward();
        optimizer.step();
      });
      EXPECT_EQ(block->qkv->weight.grad().sizes(), block->qkv->weight.sizes());
    }
  }
}

// A step on whichever device, from making its tensors to its gradients.
using Step = std::function<void(at::Device)>;

at::Tensor leaf(at::IntArrayRef sizes, at::Device device,
                at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return torch::empty(sizes, torch::TensorOptions(device).memory_format(format)).requires_grad_();
}

Step attention(double p, bool causal, bool masked) {
  return [=](at::Device device) {
    const auto q = leaf({2, 3, 4, 8}, device);
    const auto k = leaf({2, 3, 5, 8}, device), v = leaf({2, 3, 5, 8}, device);
    const auto mask = torch::empty({4, 5}, torch::TensorOptions(device).dtype(torch::kBool));
    torch::scaled_dot_product_attention(q, k, v, masked ? std::optional(mask) : std::nullopt, p,
                                        causal)
        .sum()
        .backward();
  };
}

// What a step calls, backward included. A view is a view, whichever way it is asked for, and
// autograd's sums are out of place on meta, as shape_functions.h says.
std::vector<std::string> calls_of(const std::function<void()>& step) {
  auto calls = testing::operators_of(step, Reach::kBackwardAsWell);
  std::replace(calls.begin(), calls.end(), std::string("_reshape_alias"), std::string("view"));
  std::replace(calls.begin(), calls.end(), std::string("add_.Tensor"), std::string("add.Tensor"));
  return calls;
}

// Of which gtest shows the difference.
std::string in_lines(const std::vector<std::string>& calls) {
  std::string text;
  for (const std::string& each : calls) text += each + "\n";
  return text;
}

Step lstm(bool bidirectional, bool batch_first, bool biases) {
  return [=](at::Device device) {
    torch::nn::LSTM layers(torch::nn::LSTMOptions(6, 5)
                               .num_layers(2)
                               .dropout(0.2)
                               .bidirectional(bidirectional)
                               .batch_first(batch_first)
                               .bias(biases));
    std::optional<LentToMeta> lent;
    if (device.is_meta()) lent.emplace(layers->parameters());
    const auto [y, last] = layers->forward(leaf({3, 4, 6}, device));
    (y.sum() + std::get<1>(last).sum()).backward();
  };
}

// Operators choose the same parts of theirs on meta as on the CPU.
TEST(RunOnMeta, StepsAreMadeOfWhatTheCpuMakesThemOf) {
  const std::vector<Step> steps = {
      attention(0, false, false),
      attention(0, true, false),
      attention(0, false, true),
      attention(0.2, false, true),
      attention(0.2, false, false),
      attention(0.2, true, false),
      [](at::Device d) {
        torch::dropout(leaf({4, 5}, d), 0.1, true).sum().backward();
      },
      [](at::Device d) {
        torch::layer_norm(leaf({4, 5}, d), {5}).sum().backward();
      },
      // Backward of these differs, as shape_functions.h says.
      [](at::Device d) {
        torch::rms_norm(leaf({4, 5}, d), {5});
      },
      [](at::Device d) {
        torch::group_norm(leaf({2, 4, 6, 6}, d, at::MemoryFormat::ChannelsLast), 2);
      },
      [](at::Device d) {
        torch::group_norm(leaf({2, 4, 6, 6}, d), 2).sum().backward();
      },
      [](at::Device d) {
        const auto x = leaf({2, 4, 6, 6}, d);
        const auto y = torch::conv2d(x, leaf({4, 4, 3, 3}, d), {}, 1, 1);
        const auto z = torch::batch_norm(y, {}, {}, {}, {}, true, 0.1, 1e-5, true);
        torch::adaptive_avg_pool2d(torch::max_pool2d(torch::relu(z), 2), {2, 2}).sum().backward();
      },
      [](at::Device d) {
        const auto tokens = torch::zeros({2, 3}, torch::TensorOptions(d).dtype(torch::kLong));
        torch::embedding(leaf({5, 4}, d), tokens).sum().backward();
      },
      [](at::Device d) {
        const auto x = leaf({2, 4, 6, 6}, d);
        torch::instance_norm(torch::pixel_shuffle(x, 2), {}, {}, {}, {}, true, 0.1, 1e-5, true)
            .sum()
            .backward();
      },
      lstm(false, false, true),
      lstm(true, true, true),
      lstm(true, false, false),
      [](at::Device d) {
        torch::std(at::log_sigmoid(leaf({4, 5}, d))).backward();
      },
  };
  ensure_shape_functions();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto real = calls_of([&] { steps[i](at::kCPU); });
    const auto on_meta = calls_of([&] { run_on_meta([&] { steps[i](at::kMeta); }); });
    EXPECT_EQ(in_lines(on_meta), in_lines(real)) << i;
  }
}

bool uses(const std::string& op, const Step& step) {
  const auto seen = calls_of([&] { run_on_meta([&] { step(at::kMeta); }); });
  return std::find(seen.begin(), seen.end(), op) != seen.end();
}

TEST(RunOnMeta, FollowsCudasChoicesWhereToldTo) {
  const Step dropped = [](at::Device d) { torch::dropout(leaf({4, 5}, d), 0.1, true); };
  const auto halves = [](bool masked) {
    return [masked](at::Device d) {
      const auto q = leaf({2, 3, 4, 6}, d).to(torch::kBFloat16);
      const auto mask = torch::empty({4, 4}, torch::TensorOptions(d).dtype(torch::kBool));
      torch::scaled_dot_product_attention(q, q, q, masked ? std::optional(mask) : std::nullopt, 0.1)
          .sum()
          .backward();
    };
  };
  EXPECT_FALSE(uses("native_dropout", dropped));
  EXPECT_FALSE(uses("_scaled_dot_product_flash_attention", halves(false)));
  const ShapesOfDevice cuda(c10::kCUDA);
  EXPECT_TRUE(uses("native_dropout", dropped));
  EXPECT_TRUE(uses("_scaled_dot_product_flash_attention", halves(false)));
  EXPECT_TRUE(uses("_scaled_dot_product_flash_attention_backward", halves(false)));
  // A width of 6 halves is no whole vector: neither kernel takes it with a mask.
  EXPECT_FALSE(uses("_scaled_dot_product_efficient_attention", halves(true)));
  EXPECT_TRUE(uses("_scaled_dot_product_efficient_attention", attention(0.1, false, true)));
  EXPECT_TRUE(
      uses("_scaled_dot_product_efficient_attention_backward", attention(0.1, true, false)));
  {
    const ShapesOfDevice cpu(c10::kCPU);
    EXPECT_FALSE(uses("native_dropout", dropped));
  }
  EXPECT_EQ(shapes_device(), c10::kCUDA);
  std::thread([] { EXPECT_EQ(shapes_device(), c10::kCPU); }).join();
}

TEST(RunOnMeta, AMaskThatIsNotDefinedIsNone) {
  const auto masked_by = [](const std::optional<at::Tensor>& mask) {
    return [mask](at::Device d) {
      const auto q = leaf({2, 3, 4, 8}, d).to(torch::kBFloat16);
      torch::scaled_dot_product_attention(q, q, q, mask, 0.1).sum().backward();
    };
  };
  const auto calls = [](const Step& step) {
    return calls_of([&] { run_on_meta([&] { step(at::kMeta); }); });
  };
  for (const c10::DeviceType type : {c10::kCPU, c10::kCUDA}) {
    const ShapesOfDevice of(type);
    EXPECT_EQ(calls(masked_by(at::Tensor())), calls(masked_by(std::nullopt)));
  }
}

// As LibTorch documents them for torch.compile: statistics are floats, the efficient kernel's in
// blocks of 32 rows.
TEST(RunOnMeta, KernelsOfCudaHaveTheirDocumentedShapes) {
  ensure_shape_functions();
  const auto q =
      torch::empty({2, 3, 40, 8}, torch::TensorOptions(torch::kMeta).dtype(torch::kHalf));
  const auto flash = at::_scaled_dot_product_flash_attention(q, q, q, 0.1, true);
  EXPECT_EQ(std::get<0>(flash).sizes(), q.sizes());
  EXPECT_EQ(std::get<1>(flash).sizes(), at::IntArrayRef({2, 3, 40}));
  EXPECT_EQ(std::get<1>(flash).scalar_type(), torch::kFloat);
  EXPECT_FALSE(std::get<2>(flash).defined());
  EXPECT_EQ(std::get<6>(flash).sizes(), at::IntArrayRef({2}));
  const auto grads = at::_scaled_dot_product_flash_attention_backward(
      std::get<0>(flash), q, q, q, std::get<0>(flash), std::get<1>(flash), {}, {}, 40, 40, 0.1,
      true, std::get<6>(flash), std::get<7>(flash));
  EXPECT_EQ(std::get<2>(grads).strides(), q.strides());
  const auto efficient = at::_scaled_dot_product_efficient_attention(q, q, q, {}, true);
  EXPECT_EQ(std::get<0>(efficient).transpose(1, 2).is_contiguous(), true);
  EXPECT_EQ(std::get<1>(efficient).sizes(), at::IntArrayRef({2, 3, 64}));
  EXPECT_EQ(std::get<1>(at::_scaled_dot_product_efficient_attention(q, q, q, {}, false)).numel(),
            0);
  const auto bias = torch::empty({2, 3, 40, 40}, q.options());
  const auto all = at::_scaled_dot_product_efficient_attention_backward(
      std::get<0>(efficient), q, q, q, bias, std::get<0>(efficient), std::get<1>(efficient),
      std::get<2>(efficient), std::get<3>(efficient), 0.0, {true, true, true, true});
  EXPECT_EQ(std::get<0>(all).sizes(), q.sizes());
  EXPECT_EQ(std::get<3>(all).sizes(), bias.sizes());
  EXPECT_EQ(std::get<3>(all).stride(2), 48);
}

TEST(RunOnMeta, StatisticsAreOfTheDevice) {
  const auto x = torch::empty({4, 8}, torch::TensorOptions(torch::kMeta).dtype(torch::kBFloat16));
  ensure_shape_functions();
  const auto statistics = [&] {
    return std::get<1>(at::native_layer_norm(x, {8}, {}, {}, 1e-5)).scalar_type();
  };
  EXPECT_EQ(statistics(), torch::kBFloat16);
  const ShapesOfDevice cuda(c10::kCUDA);
  EXPECT_EQ(statistics(), torch::kFloat);
}

TEST(RunOnMeta, NamesAnOperatorWithoutAShapeFunction) {
  const auto text = refusal_of([] {
    run_on_meta([] { torch::linalg_eig(torch::empty({3, 3}, torch::kMeta)); });
  });
  EXPECT_NE(text.find("calls aten::linalg_eig"), std::string::npos) << text;
  EXPECT_NE(text.find("docs/extending.md"), std::string::npos) << text;
}

TEST(RunOnMeta, SaysThatThereAreNoValues) {
  const auto x = torch::empty({1}, torch::kMeta);
  for (const std::function<void()>& step :
       {std::function<void()>([&] { x.item<float>(); }), std::function<void()>([&] { x.cpu(); }),
        std::function<void()>([&] { x.nonzero(); }),
        std::function<void()>([&] { x.data_ptr<float>(); })}) {
    const auto text = refusal_of([&] { run_on_meta(step); });
    EXPECT_NE(text.find("reads values of a tensor"), std::string::npos) << text;
  }
}

TEST(RunOnMeta, LetsOtherErrorsPass) {
  EXPECT_THROW(run_on_meta([] {
                 torch::mm(torch::empty({2, 3}, torch::kMeta), torch::empty({2, 3}, torch::kMeta));
               }),
               c10::Error);
  EXPECT_THROW(run_on_meta([] { throw std::runtime_error("theirs"); }), std::runtime_error);
}

TEST(RunOnMeta, KnowsNoOtherDevices) {
  const auto text = refusal_of([] { const ShapesOfDevice xla(c10::kXLA); });
  EXPECT_NE(text.find("\"xla\""), std::string::npos) << text;
}

TEST(RunOnMeta, TakesUsersOwnShapeFunctions) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("example::sum_pairs", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  const auto real = op.call(torch::rand({3, 8}));
  run_on_meta([&] {
    const auto shape = op.call(torch::empty({3, 8}, torch::kMeta));
    EXPECT_EQ(shape.sizes(), real.sizes());
    EXPECT_EQ(shape.strides(), real.strides());
  });
}

}  // namespace
}  // namespace reprise::libtorch
