// The ViT computes what it should: every patch counts, the published number of parameters, and
// clear refusals of what cannot be built.
#include "models/vit.h"
#include "tests/refusal.h"

#include <gmock/gmock.h>
#include <reprise/estimate.h>

#include <cmath>

namespace reprise::models {
namespace {

using testing::HasSubstr;

constexpr VitOptions kSmallVit{
    .layers = 2, .width = 32, .heads = 4, .image = 8, .channels = 3, .patch = 4, .classes = 5};

at::Tensor random_images(std::int64_t batch) {
  return torch::randn({batch, kSmallVit.channels, kSmallVit.image, kSmallVit.image});
}

TEST(Vit, HasThePublishedNumberOfParameters) {
  const MetaTensorsScope unallocated;
  EXPECT_EQ(parameter_count(*Vit(vit_base())), 86'567'656);
}

TEST(Vit, WeightsStartAsTheAuthors) {
  torch::manual_seed(4);
  Vit model(VitOptions{.layers = 2, .width = 128, .heads = 4, .image = 64, .patch = 4});
  const auto parameters = model->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("patches.weight"), 1.0 / 4, 0.02);
  EXPECT_NEAR(deviation("positions"), 0.02, 0.001);
  EXPECT_NEAR(deviation("block0.mlp_in.weight"), std::sqrt(2.0 / (128 + 512)), 0.002);
  EXPECT_TRUE(torch::all(parameters["block1.qkv.bias"] == 0).item<bool>());
  EXPECT_TRUE(torch::all(parameters["class_token"] == 0).item<bool>());
  EXPECT_TRUE(torch::all(parameters["block1.mlp_norm.weight"] == 1).item<bool>());
}

TEST(Vit, MakesAPlaceOfEachPatchAndAClassOfAnImage) {
  Vit model(kSmallVit);
  const auto x = model->embed(random_images(3));
  EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{3, 1 + 4, 32}));
  EXPECT_EQ(model->forward(random_images(3)).sizes(), (std::vector<std::int64_t>{3, 5}));
}

TEST(Vit, APatchChangesItsOwnPlaceOfTheEmbeddingAndTheClassInTheEnd) {
  torch::manual_seed(1);
  Vit model(kSmallVit);
  model->eval();
  const auto images = random_images(2);
  auto changed = images.clone();
  // Lower left: place 3, after the class's and the upper two.
  changed.slice(2, 4).slice(3, 0, 4).add_(1.0);
  const auto differs = model->embed(images).ne(model->embed(changed)).any(-1).any(0);
  EXPECT_TRUE(torch::equal(differs, torch::tensor({false, false, false, true, false})));
  EXPECT_FALSE(torch::allclose(model->forward(images), model->forward(changed), 1e-5, 1e-6));
}

TEST(Vit, DropoutActsInTrainingAlone) {
  torch::manual_seed(2);
  Vit model(kSmallVit);
  const auto images = random_images(2);
  EXPECT_FALSE(torch::equal(model->forward(images), model->forward(images)));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(images), model->forward(images)));
}

TEST(Vit, LearnsClasses) {
  torch::manual_seed(3);
  VitOptions options = kSmallVit;
  options.dropout = 0;
  Vit model(options);
  const auto images = random_images(10), targets = torch::arange(10) % 5;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    at::cross_entropy_loss(model->forward(images), targets).backward();
    optimizer.step();
  }
  EXPECT_LT(at::cross_entropy_loss(model->forward(images), targets).item<double>(), 0.3);
}

TEST(Vit, RefusesWhatCannotBeBuilt) {
  const auto with = [](auto change) {
    VitOptions options = kSmallVit;
    change(options);
    return refusal_of([&] { Vit model(options); });
  };
  EXPECT_THAT(with([](auto& o) { o.layers = 0; }), HasSubstr("layers is 0"));
  EXPECT_THAT(with([](auto& o) { o.patch = 0; }), HasSubstr("patch is 0"));
  EXPECT_THAT(with([](auto& o) { o.channels = 0; }), HasSubstr("channels is 0"));
  EXPECT_THAT(with([](auto& o) { o.image = 10; }),
              HasSubstr("patch 4 does not divide image 10; choose an image that is a multiple of "
                        "patch, such as 12"));
  EXPECT_THAT(with([](auto& o) { o.heads = 3; }), HasSubstr("3 heads do not divide width 32"));
  EXPECT_THAT(with([](auto& o) { o.classes = 1; }), HasSubstr("classes is 1"));
  EXPECT_THAT(with([](auto& o) { o.dropout = -0.5; }), HasSubstr("dropout is -0.5"));
}

TEST(Vit, RefusesImagesOfAnotherShape) {
  Vit model(kSmallVit);
  EXPECT_THAT(refusal_of([&] {
                model->embed(torch::zeros({2, 1, 8, 8}));
              }),
              HasSubstr("images of shape [2, 1, 8, 8] do not fit the model's [batch, 3, 8, 8]"));
}

}  // namespace
}  // namespace reprise::models
