// Comparing gradients: any bit counts, and the report says where, how much, and what.
#include "apps/cli/training/gradients.h"

#include <gmock/gmock.h>
#include <reprise/checkpoint.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

namespace reprise::app {
namespace {

torch::nn::Sequential two_layers() {
  torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::Linear(3, 4));
  allocate_gradients(*model);
  return model;
}

at::Tensor gradient(const torch::nn::Sequential& model, const char* name) {
  return model->named_parameters()[name].mutable_grad();
}

TEST(GradientDifference, NamesTheFirstParameterAndElementAndCountsTheRest) {
  const auto model = two_layers();
  gradient(model, "0.bias").fill_(0.1F);
  const GradientBits expected = gradient_bits(*model);
  EXPECT_FALSE(first_difference(*model, expected));
  gradient(model, "0.bias")[1] = 0.2F;
  gradient(model, "0.bias")[2] = 0.3F;
  gradient(model, "1.weight")[3][2] = 1e-30F;
  const auto difference = first_difference(*model, expected);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->text(),
            "the gradient of 0.bias differs from the plain step's: element 1 is 0.200000003 "
            "instead of 0.100000001; 2 of 3 elements differ, and gradients of 2 of 4 parameters");
  EXPECT_EQ(difference->json().at("differing_parameters"), 2);
}

TEST(GradientDifference, CountsElementsThroughTheFlattenedGradient) {
  const auto model = two_layers();
  // Whatever the order in memory.
  model->named_parameters()["1.weight"].mutable_grad() = torch::zeros({3, 4}).t();
  const GradientBits expected = gradient_bits(*model);
  gradient(model, "1.weight")[2][1] = 1;
  EXPECT_EQ(first_difference(*model, expected)->index, 2 * 3 + 1);
}

TEST(GradientDifference, TellsNeighbouringFloatsAndDoublesApart) {
  auto model = two_layers();
  GradientBits expected = gradient_bits(*model);
  gradient(model, "0.bias")[0] = std::nextafterf(1, 2);
  model->named_parameters()["0.bias"].mutable_grad()[1] = 1;
  auto difference = first_difference(*model, expected);
  EXPECT_EQ(difference->found, "1.00000012");
  model->to(at::kDouble);
  allocate_gradients(*model);
  expected = gradient_bits(*model);
  gradient(model, "0.bias")[0] = std::nextafter(1.0, 2.0);
  difference = first_difference(*model, expected);
  EXPECT_EQ(difference->found, "1.0000000000000002");
}

float nan_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

TEST(GradientDifference, ShowsTheBitsOfValuesThatReadAlike) {
  const auto model = two_layers();
  auto* values = gradient(model, "0.bias").mutable_data_ptr<float>();
  values[0] = nan_of(0x7fc00001);
  const GradientBits expected = gradient_bits(*model);
  EXPECT_FALSE(first_difference(*model, expected)) << "equal bits are equal, NaN or not";
  values[0] = nan_of(0x7fc00002);
  const auto difference = first_difference(*model, expected);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->expected, "nan (0x7fc00001)");
  EXPECT_EQ(difference->found, "nan (0x7fc00002)");
}

TEST(GradientDifference, AMissingGradientIsADifference) {
  const auto model = two_layers();
  const GradientBits expected = gradient_bits(*model);
  model->named_parameters()["1.bias"].mutable_grad().reset();
  const auto difference = first_difference(*model, expected);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->parameter, "1.bias");
  EXPECT_EQ(difference->expected, "a gradient of 16 bytes");
  EXPECT_EQ(difference->found, "no gradient");
  EXPECT_EQ(difference->differing, 4);
  const GradientBits without = gradient_bits(*model);
  EXPECT_FALSE(first_difference(*model, without)) << "missing in both";
}

TEST(GradientDifference, IsSeenWhereReentrantRegionsSumAroundASkipConnection) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 64), torch::nn::Linear(64, 64));
  const at::Tensor x = torch::randn({64, 64});
  const auto step = [&](bool regions, bool reentrant) {
    model->zero_grad();
    at::Tensor h = x;
    for (auto& layer : *model) {
      h = layer.forward(h);
      const auto branch = [](const at::Tensor& t) { return torch::sin(t * 1.3) + torch::tanh(t); };
      h = h * (regions ? checkpoint({.reentrant = reentrant}, branch, h) : branch(h));
    }
    h.sum().backward();
  };
  step(false, false);
  const GradientBits expected = gradient_bits(*model);
  step(true, false);
  EXPECT_FALSE(first_difference(*model, expected));
  step(true, true);
  EXPECT_TRUE(first_difference(*model, expected));
}

}  // namespace
}  // namespace reprise::app
