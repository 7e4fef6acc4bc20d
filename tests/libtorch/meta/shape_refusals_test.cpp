// What the CPU refuses, meta tensors refuse: a network that cannot run is not estimated.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "libtorch/meta/shape_functions.h"

namespace reprise::libtorch {
namespace {

struct RefusedCall {
  std::string name;
  std::function<void(at::TensorOptions)> call;
};

class RefusedShapes : public ::testing::TestWithParam<RefusedCall> {};

TEST_P(RefusedShapes, AreThoseOfTheCpu) {
  ensure_shape_functions();
  EXPECT_THROW(GetParam().call(at::kCPU), std::exception);
  EXPECT_THROW(GetParam().call(at::kMeta), c10::Error);
}

at::Tensor some(at::IntArrayRef sizes, at::TensorOptions on) { return at::empty(sizes, on); }

using On = at::TensorOptions;

RefusedCall convolving(const std::string& name, at::IntArrayRef x, at::IntArrayRef weight,
                       std::int64_t bias, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation, std::int64_t groups, bool transposed = false) {
  return {"Conv" + name, [=, x = x.vec(), weight = weight.vec()](On on) {
            const auto of_bias = bias > 0 ? some({bias}, on) : at::Tensor();
            at::convolution(some(x, on), some(weight, on), of_bias, {stride, stride},
                            {padding, padding}, {dilation, dilation}, transposed, {0, 0}, groups);
          }};
}

std::vector<RefusedCall> of_convolutions() {
  return {
      convolving("Channels", {2, 5, 8, 8}, {4, 3, 3, 3}, 0, 1, 0, 1, 1),
      convolving("GroupedChannels", {2, 6, 8, 8}, {4, 6, 3, 3}, 0, 1, 0, 1, 2),
      convolving("OutputsOfGroups", {2, 6, 8, 8}, {5, 3, 3, 3}, 0, 1, 0, 1, 2),
      convolving("Bias", {2, 3, 8, 8}, {4, 3, 3, 3}, 3, 1, 0, 1, 1),
      convolving("Stride", {2, 3, 8, 8}, {4, 3, 3, 3}, 4, 0, 0, 1, 1),
      convolving("Padding", {2, 3, 8, 8}, {4, 3, 3, 3}, 4, 1, -1, 1, 1),
      convolving("Dilation", {2, 3, 8, 8}, {4, 3, 3, 3}, 4, 1, 0, 0, 1),
      convolving("Groups", {2, 3, 8, 8}, {4, 3, 3, 3}, 4, 1, 0, 1, 0),
      convolving("KernelBeyondInput", {2, 3, 2, 2}, {4, 3, 3, 3}, 4, 1, 0, 1, 1),
      convolving("Dimensions", {2, 3, 8}, {4, 3, 3, 3}, 4, 1, 0, 1, 1),
      convolving("Matrix", {2, 3}, {4, 3}, 4, 1, 0, 1, 1),
      convolving("TransposedChannels", {2, 3, 8, 8}, {4, 3, 3, 3}, 0, 1, 0, 1, 1, true),
      convolving("TransposedBias", {2, 4, 8, 8}, {4, 3, 3, 3}, 4, 1, 0, 1, 1, true),
      {"ConvTypes",
       [](On on) {
         at::conv2d(some({2, 3, 8, 8}, on), some({4, 3, 3, 3}, on.dtype(at::kDouble)));
       }},
      {"ConvStrides",
       [](On on) {
         at::convolution(some({2, 3, 8, 8}, on), some({4, 3, 3, 3}, on), {}, {1, 1, 1}, {0, 0},
                         {1, 1}, false, {0, 0}, 1);
       }},
      {"Im2colKernel",
       [](On on) {
         at::im2col(some({2, 3, 8, 8}, on), {0, 3}, {1, 1}, {0, 0}, {1, 1});
       }},
      {"Im2colStride",
       [](On on) {
         at::im2col(some({2, 3, 8, 8}, on), {3, 3}, {1, 1}, {0, 0}, {0, 1});
       }},
      {"Im2colDilation",
       [](On on) {
         at::im2col(some({2, 3, 8, 8}, on), {3, 3}, {0, 1}, {0, 0}, {1, 1});
       }},
      {"Im2colPadding",
       [](On on) {
         at::im2col(some({2, 3, 8, 8}, on), {3, 3}, {1, 1}, {-1, 0}, {1, 1});
       }},
      {"Im2colBeyondInput",
       [](On on) {
         at::im2col(some({2, 3, 2, 2}, on), {3, 3}, {1, 1}, {0, 0}, {1, 1});
       }},
      {"Im2colDimensions",
       [](On on) {
         at::im2col(some({8, 8}, on), {3, 3}, {1, 1}, {0, 0}, {1, 1});
       }},
      {"Col2imKernel",
       [](On on) {
         at::col2im(some({2, 27, 36}, on), {8, 8}, {0, 3}, {1, 1}, {0, 0}, {1, 1});
       }},
      {"Col2imStride",
       [](On on) {
         at::col2im(some({2, 27, 36}, on), {8, 8}, {3, 3}, {1, 1}, {0, 0}, {0, 0});
       }},
      {"Col2imRows",
       [](On on) {
         at::col2im(some({2, 26, 36}, on), {8, 8}, {3, 3}, {1, 1}, {0, 0}, {1, 1});
       }},
      {"Col2imPatches",
       [](On on) {
         at::col2im(some({2, 27, 35}, on), {8, 8}, {3, 3}, {1, 1}, {0, 0}, {1, 1});
       }},
  };
}

std::vector<RefusedCall> of_normalizations() {
  const auto layer_norm = [](at::IntArrayRef x, at::IntArrayRef normalized, at::IntArrayRef weight,
                             at::IntArrayRef bias) {
    return [x = x.vec(), normalized = normalized.vec(), weight = weight.vec(),
            bias = bias.vec()](On on) {
      at::layer_norm(some(x, on), normalized, some(weight, on), some(bias, on));
    };
  };
  const auto batch_norm = [](at::IntArrayRef x, std::int64_t weight, std::int64_t mean) {
    return [=, x = x.vec()](On on) {
      at::batch_norm(some(x, on), some({weight}, on), some({weight}, on), some({mean}, on),
                     some({mean}, on), true, 0.1, 1e-5, false);
    };
  };
  const auto group_norm = [](at::IntArrayRef x, std::int64_t groups, std::int64_t weight) {
    return [=, x = x.vec()](On on) {
      at::group_norm(some(x, on), groups, some({weight}, on), some({weight}, on));
    };
  };
  return {
      {"LayerNormLongerThanInput", layer_norm({5}, {4, 5}, {4, 5}, {4, 5})},
      {"LayerNormTail", layer_norm({4, 5}, {4}, {4}, {4})},
      {"LayerNormNothing", layer_norm({4, 5}, {}, {}, {})},
      {"LayerNormWeight", layer_norm({4, 5}, {5}, {4}, {5})},
      {"LayerNormBias", layer_norm({4, 5}, {5}, {5}, {1, 5})},
      {"BatchNormWeight", batch_norm({4, 5, 3}, 4, 5)},
      {"BatchNormMean", batch_norm({4, 5, 3}, 5, 4)},
      {"BatchNormDimensions", batch_norm({5}, 5, 5)},
      {"GroupNormGroups", group_norm({2, 6, 3}, 4, 6)},
      {"GroupNormNoGroups", group_norm({2, 6, 3}, 0, 6)},
      {"GroupNormWeight", group_norm({2, 6, 3}, 3, 5)},
      {"GroupNormDimensions", group_norm({6}, 3, 6)},
  };
}

std::vector<RefusedCall> of_pooling() {
  const auto max_pool3d = [](at::IntArrayRef x, std::int64_t kernel, std::int64_t stride,
                             std::int64_t padding, std::int64_t dilation) {
    return [=, x = x.vec()](On on) {
      at::max_pool3d_with_indices(some(x, on), {kernel, kernel, kernel}, {stride, stride, stride},
                                  {padding, padding, padding}, {dilation, dilation, dilation});
    };
  };
  return {
      {"Pool3dKernel", max_pool3d({2, 3, 8, 8, 8}, 0, 1, 0, 1)},
      {"Pool3dStride", max_pool3d({2, 3, 8, 8, 8}, 2, 0, 0, 1)},
      {"Pool3dPadding", max_pool3d({2, 3, 8, 8, 8}, 2, 1, 2, 1)},
      {"Pool3dDilation", max_pool3d({2, 3, 8, 8, 8}, 2, 1, 0, 0)},
      {"Pool3dBeyondInput", max_pool3d({2, 3, 2, 2, 2}, 3, 1, 0, 1)},
      {"Pool3dDimensions", max_pool3d({3, 8, 8}, 2, 1, 0, 1)},
      {"Pool3dKernelLength",
       [](On on) {
         at::max_pool3d_with_indices(some({2, 3, 8, 8, 8}, on), {2, 2});
       }},
      {"Adaptive2dDimensions",
       [](On on) {
         at::_adaptive_avg_pool2d(some({8}, on), {2, 2});
       }},
      {"Adaptive2dNegative",
       [](On on) {
         at::_adaptive_avg_pool2d(some({2, 3, 8, 8}, on), {-1, 2});
       }},
      {"Adaptive2dEmpty",
       [](On on) {
         at::_adaptive_avg_pool2d(some({2, 3, 0, 8}, on), {2, 2});
       }},
      {"Adaptive3dDimensions",
       [](On on) {
         at::_adaptive_avg_pool3d(some({8, 8}, on), {2, 2, 2});
       }},
      {"Adaptive3dEmpty",
       [](On on) {
         at::_adaptive_avg_pool3d(some({2, 3, 8, 0, 8}, on), {2, 2, 2});
       }},
      {"Unpool2dDimensions",
       [](On on) {
         at::max_unpool2d(some({4}, on), some({4}, on.dtype(at::kLong)), {2, 2});
       }},
      {"Unpool2dIndices",
       [](On on) {
         at::max_unpool2d(some({3, 4, 4}, on), some({3, 4, 5}, on.dtype(at::kLong)), {8, 8});
       }},
      {"Unpool3dDimensions",
       [](On on) {
         at::max_unpool3d(some({4, 4}, on), some({4, 4}, on.dtype(at::kLong)), {2, 2, 2}, {2, 2, 2},
                          {0, 0, 0});
       }},
      {"ReflectionDimensions",
       [](On on) {
         at::reflection_pad2d(some({4}, on), {1, 1, 1, 1});
       }},
      {"ReflectionBeyondInput",
       [](On on) {
         at::reflection_pad2d(some({3, 4, 4}, on), {4, 1, 1, 1});
       }},
      {"GridOfAnotherBatch",
       [](On on) {
         at::grid_sampler_2d(some({2, 3, 4, 4}, on), some({3, 4, 4, 2}, on), 0, 0, false);
       }},
      {"GridOfOtherDimensions",
       [](On on) {
         at::grid_sampler_2d(some({2, 3, 4, 4}, on), some({2, 4, 4, 3}, on), 0, 0, false);
       }},
      {"ShuffleFactor",
       [](On on) {
         at::pixel_shuffle(some({2, 4, 3, 3}, on), 0);
       }},
      {"ShuffleChannels",
       [](On on) {
         at::pixel_shuffle(some({2, 6, 3, 3}, on), 2);
       }},
      {"ShuffleDimensions",
       [](On on) {
         at::pixel_shuffle(some({4, 3}, on), 2);
       }},
      {"UnshuffleFactor",
       [](On on) {
         at::pixel_unshuffle(some({2, 4, 4, 4}, on), 0);
       }},
      {"UnshuffleSides",
       [](On on) {
         at::pixel_unshuffle(some({2, 4, 4, 5}, on), 2);
       }},
      {"ShuffledGroups",
       [](On on) {
         at::channel_shuffle(some({2, 4, 4, 5}, on), 0);
       }},
      {"ShuffledChannels",
       [](On on) {
         at::channel_shuffle(some({2, 4, 4, 5}, on), 3);
       }},
  };
}

// One layer, 6 wide, on [time 3, batch 4, 5].
RefusedCall recurrent(const std::string& name, std::vector<at::DimVector> states,
                      std::vector<at::DimVector> parameters, std::int64_t layers = 1) {
  return {"Lstm" + name, [=](On on) {
            const auto all = [&](const std::vector<at::DimVector>& sizes) {
              std::vector<at::Tensor> made;
              for (const at::DimVector& each : sizes) made.push_back(at::zeros(each, on));
              return made;
            };
            at::lstm(at::zeros({3, 4, 5}, on), all(states), all(parameters), true, layers, 0.0,
                     true, false, false);
          }};
}

std::vector<RefusedCall> of_lstms() {
  const std::vector<at::DimVector> good = {{24, 5}, {24, 6}, {24}, {24}};
  return {
      recurrent("NoStates", {}, good),
      recurrent("OneState", {{1, 4, 6}}, good),
      recurrent("NoParameters", {{1, 4, 6}, {1, 4, 6}}, {}),
      recurrent("LayersWithoutParameters", {{2, 4, 6}, {2, 4, 6}}, good, 2),
  };
}

std::vector<RefusedCall> of_others() {
  return {
      {"MultinomialDimensions", [](On on) { at::multinomial(at::ones({}, on), 1); }},
      {"MultinomialSamples", [](On on) { at::multinomial(at::ones({4}, on), 0); }},
      {"DotLengths", [](On on) { at::dot(some({4}, on), some({5}, on)); }},
      {"BinaryCrossEntropyTarget",
       [](On on) {
         at::binary_cross_entropy(at::zeros({4, 2}, on), at::zeros({4, 3}, on));
       }},
      {"NllLoss2dTarget",
       [](On on) {
         at::nll_loss2d(at::zeros({2, 3, 4, 4}, on), at::zeros({2, 4, 5}, on.dtype(at::kLong)));
       }},
      {"AttentionKey",
       [](On on) {
         const auto k = at::zeros({2, 3, 4, 16}, on);
         at::_scaled_dot_product_flash_attention_for_cpu(at::zeros({2, 3, 4, 8}, on), k, k);
       }},
      {"ConvOutputPadding",
       [](On on) {
         at::conv_transpose2d(some({2, 4, 8, 8}, on), some({4, 3, 3, 3}, on), {}, 1, 0, 2);
       }},
  };
}

std::vector<RefusedCall> refused_calls() {
  std::vector<RefusedCall> all = of_convolutions();
  for (const auto& more : {of_normalizations(), of_pooling(), of_lstms(), of_others()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, RefusedShapes, ::testing::ValuesIn(refused_calls()),
                         [](const auto& info) { return info.param.name; });

// The CPU reads beyond such weights.
TEST(ShapeRefusals, AreAlsoOfLstmsWeights) {
  ensure_shape_functions();
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{24, 7}, {23, 5}}) {
    const auto meta = at::TensorOptions(at::kMeta);
    const auto state = some({1, 4, 6}, meta), bias = some({24}, meta);
    EXPECT_THROW(at::lstm(some({3, 4, 5}, meta), {state, state},
                          {some(sizes, meta), some({24, 6}, meta), bias, bias}, true, 1, 0.0, true,
                          false, false),
                 c10::Error);
  }
}

}  // namespace
}  // namespace reprise::libtorch
