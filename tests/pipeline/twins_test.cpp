// A tensor that has two uses in different stages must not be changed in place by one of them.
#include "pipeline/twins.h"

#include <reprise/skip.h>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

using ::testing::HasSubstr;
using Value = std::vector<at::Tensor>;

PipelineLayer layer_of(const char* name, std::function<Value(Value)> forward,
                       std::vector<std::string> stashes = {}, std::vector<std::string> pops = {}) {
  PipelineLayer layer{.name = name, .forward = std::move(forward)};
  layer.is_training = [] { return true; };
  layer.stashes = std::move(stashes);
  layer.pops = std::move(pops);
  return layer;
}

PipelineLayer stashing() {
  return layer_of("stashing",
                  [](Value x) {
                    const at::Tensor y = x.front() * 2;
                    stash("a", y);
                    return Value{y};
                  },
                  {"a"});
}
PipelineLayer popping() {
  return layer_of("popping", [](Value x) { return Value{x.front() * pop("a")}; }, {}, {"a"});
}
PipelineLayer passing() {
  return layer_of("passing", [](Value x) { return x; });
}
PipelineLayer changing(std::size_t which = 0) {
  return layer_of("changing", [which](Value x) {
    x[which] = x[which].relu_();
    return x;
  });
}
PipelineLayer doubling() {
  return layer_of("doubling", [](Value x) {
    const at::Tensor y = x.front() * 3;
    return Value{y, y};
  });
}
PipelineLayer adding() {
  return layer_of("adding", [](Value x) { return Value{x.front() + x.back()}; });
}

// The refusal of a pipeline with a stage for each layer, in every mode.
void expect_refused(const std::vector<PipelineLayer>& layers, const Value& input,
                    const std::string& text) {
  for (const auto mode : {CheckpointMode::kNever, CheckpointMode::kAlways}) {
    for (const char* schedule : {"gpipe", "1f1b"}) {
      Pipeline pipe(layers, {.balance = std::vector<std::int64_t>(layers.size(), 1),
                             .chunks = 2,
                             .checkpoint = mode,
                             .schedule = schedule});
      EXPECT_THAT(refusal_of([&] {
                    pipe.step_tensors(input, input,
                                      [](const Value& y, const Value&) { return y.front().sum(); });
                  }),
                  HasSubstr(text))
          << schedule;
    }
  }
}

at::Tensor gradient_of(const std::vector<PipelineLayer>& layers,
                       const std::vector<std::int64_t>& balance, const at::Tensor& x) {
  at::Tensor leaf = x.clone().requires_grad_();
  Pipeline pipe(layers, {.balance = balance, .chunks = 2});
  pipe.forward(leaf * 1).sum().backward();
  return leaf.grad();
}

TEST(Twins, AStashedTensorMustNotBeChangedByALaterStage) {
  const Value x{torch::randn({4, 3})};
  expect_refused({stashing(), changing(), popping()}, x,
                 "a layer of stage 1 changes input 0 of the stage in place");
  expect_refused({stashing(), changing(), popping()}, x, "the other use, in stage 2");
  // Not even by a stage that gets it past others.
  expect_refused({stashing(), passing(), changing(), popping()}, x, "a layer of stage 2");
}

TEST(Twins, NorOneThatWasGivenOrReturnedTwice) {
  const at::Tensor x = torch::randn({4, 3});
  expect_refused({doubling(), changing(), adding()}, {x}, "a layer of stage 1 changes input 0");
  expect_refused({doubling(), changing(1), adding()}, {x}, "a layer of stage 1 changes input 1");
  expect_refused({doubling(), passing(), changing(1), adding()}, {x}, "a layer of stage 2");
  expect_refused({changing(), adding()}, {x, x}, "a layer of stage 0 changes input 0");
  expect_refused({passing(), changing(), adding()}, {x, x.view({4, 3})}, "a layer of stage 1");
}

TEST(Twins, WithinOneStageTheChangeIsSeenAsWithoutAPipeline) {
  const at::Tensor x = torch::randn({4, 3});
  const std::vector<PipelineLayer> layers{stashing(), changing(), popping()};
  const at::Tensor gradient = gradient_of(layers, {3}, x);
  EXPECT_TRUE(at::allclose(gradient, 8 * x.relu()));  // of relu(2x) squared
  EXPECT_TRUE(at::equal(gradient_of(layers, {2, 1}, x), gradient));
}

TEST(Twins, OnceTheOtherUseIsOverATensorMayBeChanged) {
  const at::Tensor x = torch::randn({4, 3});
  const std::vector<PipelineLayer> layers{stashing(),
                                          layer_of("popping and passing",
                                                   [](Value x) {
                                                     const at::Tensor popped = pop("a");
                                                     return Value{x.front() + 0 * popped.sum()};
                                                   },
                                                   {}, {"a"}),
                                          changing()};
  EXPECT_TRUE(at::equal(gradient_of(layers, {1, 1, 1}, x), gradient_of(layers, {3}, x)));
}

TEST(Twins, PartsOfOneTensorAreApart) {
  const at::Tensor x = torch::randn({4, 6});
  const std::vector<PipelineLayer> layers{
      layer_of("parting", [](Value x) { return (x.front() * 2).chunk(3, 1); }), changing(1),
      layer_of("joining", [](Value x) { return Value{torch::cat(x, 1)}; })};
  const at::Tensor gradient = gradient_of(layers, {1, 1, 1}, x);
  at::Tensor expected = torch::full({4, 6}, 2.0);
  expected.slice(1, 2, 4).mul_(x.slice(1, 2, 4) > 0);
  EXPECT_TRUE(at::equal(gradient, expected));
}

TEST(Twins, OverlapIsExactForViewsOfADenseTensor) {
  const at::Tensor x = torch::zeros({4, 6, 2});
  const auto overlaps = [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(may_overlap(a, b), may_overlap(b, a));
    return may_overlap(a, b);
  };
  EXPECT_TRUE(overlaps(x, x));
  EXPECT_TRUE(overlaps(x, x.select(1, 2)));
  EXPECT_TRUE(overlaps(x.slice(1, 0, 4), x.slice(1, 2, 6)));
  EXPECT_FALSE(overlaps(x.slice(1, 0, 3), x.slice(1, 3, 6)));
  EXPECT_FALSE(overlaps(x.slice(2, 0, 1), x.slice(2, 1, 2)));
  EXPECT_FALSE(overlaps(x.slice(1, 0, 6, 2), x.slice(1, 1, 6, 2)));
  EXPECT_FALSE(overlaps(x.slice(0, 0, 2), x.slice(0, 2, 4)));
  EXPECT_FALSE(overlaps(x, torch::zeros({4, 6, 2})));
  EXPECT_FALSE(overlaps(x, at::Tensor()));
  EXPECT_FALSE(overlaps(x.slice(0, 0, 0), x));
}

}  // namespace
}  // namespace reprise::pipeline
