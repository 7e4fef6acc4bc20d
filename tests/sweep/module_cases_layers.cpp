// Convolutions, normalizations, activations, pooling, padding and the like.
#include "tests/sweep/module_cases.h"

namespace reprise::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

// One dimension, two, three: of `size` each.
std::vector<std::int64_t> box(std::int64_t n, std::int64_t channels, int dims, std::int64_t size) {
  std::vector<std::int64_t> sizes{n, channels};
  sizes.insert(sizes.end(), static_cast<std::size_t>(dims), size);
  return sizes;
}

std::function<Tensors(std::int64_t)> boxes(std::int64_t channels, int dims, std::int64_t size) {
  return [=](std::int64_t n) { return Tensors{leaf(box(n, channels, dims, size))}; };
}

template <class Module, class Options>
ModuleCase on(const char* name, Options options, std::function<Tensors(std::int64_t)> inputs) {
  return {name, [=](std::int64_t n) { return given(Module(options), inputs(n)); }};
}
template <class Module>
ModuleCase on(const char* name, std::function<Tensors(std::int64_t)> inputs) {
  return {name, [=](std::int64_t n) { return given(Module(), inputs(n)); }};
}

const auto kRows = [](std::int64_t n) { return Tensors{leaf({n, 3, 24})}; };
const auto kVolume = boxes(3, 3, 6);

void add_convolutions(std::vector<ModuleCase>& all) {
  all.push_back(on<nn::Linear>("Linear", nn::LinearOptions(24, 9), kRows));
  all.push_back(on<nn::Bilinear>("Bilinear", nn::BilinearOptions(5, 6, 40), [](std::int64_t n) {
    return Tensors{leaf({n, 5}), leaf({n, 6})};
  }));
  all.push_back(on<nn::Identity>("Identity", kRows));
  all.push_back(on<nn::Flatten>("Flatten", kRows));
  all.push_back(on<nn::Unflatten>("Unflatten", nn::UnflattenOptions(2, {4, 6}), kRows));
  all.push_back(on<nn::Conv1d>("Conv1d", nn::Conv1dOptions(3, 4, 3).padding(1), boxes(3, 1, 24)));
  all.push_back(on<nn::Conv2d>("Conv2d", nn::Conv2dOptions(4, 4, 3).groups(2), boxes(4, 2, 8)));
  all.push_back(on<nn::Conv2d>("Conv2dCircular",
                               nn::Conv2dOptions(3, 4, 3).padding(1).padding_mode(torch::kCircular),
                               boxes(3, 2, 8)));
  all.push_back(on<nn::Conv3d>("Conv3d", nn::Conv3dOptions(3, 4, 2).stride(2), kVolume));
  all.push_back(on<nn::ConvTranspose1d>("ConvTranspose1d", nn::ConvTranspose1dOptions(3, 4, 3),
                                        boxes(3, 1, 24)));
  all.push_back(on<nn::ConvTranspose2d>(
      "ConvTranspose2d", nn::ConvTranspose2dOptions(3, 4, 3).stride(2), boxes(3, 2, 6)));
  all.push_back(
      on<nn::ConvTranspose3d>("ConvTranspose3d", nn::ConvTranspose3dOptions(3, 4, 2), kVolume));
  all.push_back(on<nn::Fold>("Fold", nn::FoldOptions({4, 5}, {2, 2}), [](std::int64_t n) {
    return Tensors{leaf({n, 12, 12})};
  }));
  all.push_back(on<nn::Unfold>("Unfold", nn::UnfoldOptions({2, 2}), boxes(3, 2, 6)));
  all.push_back(on<nn::PixelShuffle>("PixelShuffle", nn::PixelShuffleOptions(2), boxes(4, 2, 5)));
  all.push_back(
      on<nn::PixelUnshuffle>("PixelUnshuffle", nn::PixelUnshuffleOptions(2), boxes(4, 2, 6)));
  const std::vector<double> twice{2, 2};
  all.push_back(
      on<nn::Upsample>("Upsample", nn::UpsampleOptions().scale_factor(twice), boxes(3, 2, 5)));
  all.push_back(on<nn::Upsample>(
      "UpsampleBicubic",
      nn::UpsampleOptions().scale_factor(twice).mode(torch::kBicubic).align_corners(false),
      boxes(3, 2, 5)));
}

void add_normalizations(std::vector<ModuleCase>& all) {
  all.push_back(on<nn::BatchNorm1d>("BatchNorm1d", nn::BatchNormOptions(3), kRows));
  all.push_back(on<nn::BatchNorm2d>("BatchNorm2d", nn::BatchNormOptions(3), boxes(3, 2, 6)));
  all.push_back(on<nn::BatchNorm3d>("BatchNorm3d", nn::BatchNormOptions(3), kVolume));
  const auto options = nn::InstanceNormOptions(3).affine(true).track_running_stats(true);
  all.push_back(on<nn::InstanceNorm1d>("InstanceNorm1d", options, kRows));
  all.push_back(on<nn::InstanceNorm2d>("InstanceNorm2d", options, boxes(3, 2, 6)));
  all.push_back(on<nn::InstanceNorm3d>("InstanceNorm3d", options, kVolume));
  all.push_back(on<nn::LayerNorm>("LayerNorm", nn::LayerNormOptions({24}), kRows));
  all.push_back(on<nn::GroupNorm>("GroupNorm", nn::GroupNormOptions(2, 4), boxes(4, 2, 6)));
  all.push_back(
      on<nn::LocalResponseNorm>("LocalResponseNorm", nn::LocalResponseNormOptions(2), kVolume));
  all.push_back(
      on<nn::CrossMapLRN2d>("CrossMapLRN2d", nn::CrossMapLRN2dOptions(3), boxes(4, 2, 6)));
  all.push_back(on<nn::Dropout>("Dropout", kRows));
  all.push_back(on<nn::Dropout2d>("Dropout2d", boxes(3, 2, 6)));
  all.push_back(on<nn::Dropout3d>("Dropout3d", kVolume));
  all.push_back(on<nn::AlphaDropout>("AlphaDropout", kRows));
  all.push_back(on<nn::FeatureAlphaDropout>("FeatureAlphaDropout", kVolume));
}

void add_activations(std::vector<ModuleCase>& all) {
  all.push_back(on<nn::ELU>("ELU", kRows));
  all.push_back(on<nn::ELU>("ELUInPlace", nn::ELUOptions().inplace(true), kRows));
  all.push_back(on<nn::SELU>("SELU", kRows));
  all.push_back(on<nn::CELU>("CELU", kRows));
  all.push_back(on<nn::GELU>("GELU", kRows));
  all.push_back(on<nn::GLU>("GLU", kRows));
  all.push_back(on<nn::Hardshrink>("Hardshrink", kRows));
  all.push_back(on<nn::Hardtanh>("Hardtanh", kRows));
  all.push_back(on<nn::LeakyReLU>("LeakyReLU", kRows));
  all.push_back(on<nn::LogSigmoid>("LogSigmoid", kRows));
  all.push_back(on<nn::LogSoftmax>("LogSoftmax", nn::LogSoftmaxOptions(2), kRows));
  all.push_back(on<nn::Softmax>("Softmax", nn::SoftmaxOptions(1), kRows));
  all.push_back(on<nn::Softmin>("Softmin", nn::SoftminOptions(2), kRows));
  all.push_back(on<nn::Softmax2d>("Softmax2d", boxes(3, 2, 6)));
  all.push_back(on<nn::PReLU>("PReLU", nn::PReLUOptions().num_parameters(3), kRows));
  all.push_back(on<nn::ReLU>("ReLU", kRows));
  all.push_back(on<nn::ReLU>("ReLUInPlace", nn::ReLUOptions(true), kRows));
  all.push_back(on<nn::ReLU6>("ReLU6", kRows));
  all.push_back(on<nn::RReLU>("RReLU", kRows));
  all.push_back(on<nn::RReLU>("RReLUInPlace", nn::RReLUOptions().inplace(true), kRows));
  all.push_back(on<nn::SiLU>("SiLU", kRows));
  all.push_back(on<nn::Mish>("Mish", kRows));
  all.push_back(on<nn::Sigmoid>("Sigmoid", kRows));
  all.push_back(on<nn::Softplus>("Softplus", kRows));
  all.push_back(on<nn::Softshrink>("Softshrink", kRows));
  all.push_back(on<nn::Softsign>("Softsign", kRows));
  all.push_back(on<nn::Tanh>("Tanh", kRows));
  all.push_back(on<nn::Tanhshrink>("Tanhshrink", kRows));
  all.push_back(on<nn::Threshold>("Threshold", nn::ThresholdOptions(0.1, 2), kRows));
}

void add_pooling(std::vector<ModuleCase>& all) {
  const auto line = boxes(3, 1, 24), image = boxes(3, 2, 8);
  all.push_back(on<nn::AvgPool1d>("AvgPool1d", nn::AvgPool1dOptions(2), line));
  all.push_back(on<nn::AvgPool2d>("AvgPool2d", nn::AvgPool2dOptions(2).stride(1), image));
  all.push_back(on<nn::AvgPool3d>("AvgPool3d", nn::AvgPool3dOptions(2), kVolume));
  all.push_back(on<nn::MaxPool1d>("MaxPool1d", nn::MaxPool1dOptions(2), line));
  all.push_back(on<nn::MaxPool2d>("MaxPool2d", nn::MaxPool2dOptions(2).stride(1), image));
  all.push_back(on<nn::MaxPool3d>("MaxPool3d", nn::MaxPool3dOptions(2), kVolume));
  all.push_back(
      on<nn::AdaptiveAvgPool1d>("AdaptiveAvgPool1d", nn::AdaptiveAvgPool1dOptions(7), line));
  all.push_back(
      on<nn::AdaptiveAvgPool2d>("AdaptiveAvgPool2d", nn::AdaptiveAvgPool2dOptions({3, 5}), image));
  all.push_back(on<nn::AdaptiveAvgPool3d>("AdaptiveAvgPool3d",
                                          nn::AdaptiveAvgPool3dOptions({2, 3, 4}), kVolume));
  all.push_back(
      on<nn::AdaptiveMaxPool1d>("AdaptiveMaxPool1d", nn::AdaptiveMaxPool1dOptions(7), line));
  all.push_back(
      on<nn::AdaptiveMaxPool2d>("AdaptiveMaxPool2d", nn::AdaptiveMaxPool2dOptions({3, 5}), image));
  all.push_back(on<nn::AdaptiveMaxPool3d>("AdaptiveMaxPool3d",
                                          nn::AdaptiveMaxPool3dOptions({2, 3, 4}), kVolume));
  all.push_back(on<nn::FractionalMaxPool2d>(
      "FractionalMaxPool2d",
      nn::FractionalMaxPool2dOptions(2).output_size(std::vector<std::int64_t>{4, 4}), image));
  all.push_back(on<nn::FractionalMaxPool3d>(
      "FractionalMaxPool3d",
      nn::FractionalMaxPool3dOptions(2).output_size(std::vector<std::int64_t>{3, 3, 3}), kVolume));
  all.push_back(on<nn::LPPool1d>("LPPool1d", nn::LPPool1dOptions(2, 3), line));
  all.push_back(on<nn::LPPool2d>("LPPool2d", nn::LPPool2dOptions(2, 3), image));
  all.push_back(on<nn::LPPool3d>("LPPool3d", nn::LPPool3dOptions(2, 3), kVolume));
  const auto unpool = [](auto pool, auto unpool, Tensors inputs) {
    MadeModule made{unpool.ptr(), std::move(inputs), nullptr};
    made.forward = [pool, unpool](const Tensors& x) mutable {
      const auto [values, places] = pool->forward_with_indices(x[0]);
      return Tensors{unpool->forward(values, places)};
    };
    return made;
  };
  all.push_back({"MaxUnpool1d", [=](std::int64_t n) {
                   return unpool(nn::MaxPool1d(2), nn::MaxUnpool1d(2), line(n));
                 }});
  all.push_back({"MaxUnpool2d", [=](std::int64_t n) {
                   return unpool(nn::MaxPool2d(2), nn::MaxUnpool2d(2), image(n));
                 }});
  all.push_back({"MaxUnpool3d", [=](std::int64_t n) {
                   return unpool(nn::MaxPool3d(2), nn::MaxUnpool3d(2), kVolume(n));
                 }});
}

void add_padding(std::vector<ModuleCase>& all) {
  const auto line = boxes(3, 1, 24), image = boxes(3, 2, 8);
  all.push_back(on<nn::ReflectionPad1d>("ReflectionPad1d", nn::ReflectionPad1dOptions(2), line));
  all.push_back(on<nn::ReflectionPad2d>("ReflectionPad2d", nn::ReflectionPad2dOptions(2), image));
  all.push_back(on<nn::ReflectionPad3d>("ReflectionPad3d", nn::ReflectionPad3dOptions(1), kVolume));
  all.push_back(on<nn::ReplicationPad1d>("ReplicationPad1d", nn::ReplicationPad1dOptions(2), line));
  all.push_back(
      on<nn::ReplicationPad2d>("ReplicationPad2d", nn::ReplicationPad2dOptions(2), image));
  all.push_back(
      on<nn::ReplicationPad3d>("ReplicationPad3d", nn::ReplicationPad3dOptions(1), kVolume));
  all.push_back(on<nn::ZeroPad1d>("ZeroPad1d", nn::ZeroPad1dOptions(2), line));
  all.push_back(on<nn::ZeroPad2d>("ZeroPad2d", nn::ZeroPad2dOptions(2), image));
  all.push_back(on<nn::ZeroPad3d>("ZeroPad3d", nn::ZeroPad3dOptions(1), kVolume));
  all.push_back(on<nn::ConstantPad1d>("ConstantPad1d", nn::ConstantPad1dOptions(2, 0.5), line));
  all.push_back(on<nn::ConstantPad2d>("ConstantPad2d", nn::ConstantPad2dOptions(2, 0.5), image));
  all.push_back(on<nn::ConstantPad3d>("ConstantPad3d", nn::ConstantPad3dOptions(1, 0.5), kVolume));
}

}  // namespace

std::vector<ModuleCase> layer_modules() {
  std::vector<ModuleCase> all;
  add_convolutions(all);
  add_normalizations(all);
  add_activations(all);
  add_pooling(all);
  add_padding(all);
  return all;
}

}  // namespace reprise::testing
