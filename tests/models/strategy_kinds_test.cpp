// What a strategy may consist of besides a way to run layers: a parameter, options for every
// region, a scope around the forward of a step, and resources that a run holds. Shown by kinds that
// only this test knows.
#include <gmock/gmock.h>
#include <reprise/error.h>
#include <reprise/saved_tensor_hooks.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt.h"
#include "models/strategy.h"
#include "tests/refusal.h"

namespace reprise::models {
namespace {

using testing::HasSubstr;

// What a run would hold: a place for saved tensors that counts what comes and goes.
struct Shelf {
  explicit Shelf(std::string shelf_place, int& alive_count)
      : place(std::move(shelf_place)), alive(alive_count) {
    ++alive;
  }
  ~Shelf() { --alive; }
  std::string place;
  int& alive;
  int put = 0, taken = 0;
};

struct Kinds {
  int shelves = 0;
  std::weak_ptr<Shelf> shelf;
  int contexts = 0;

  // Parks what forward saves: a scope around it, and a shelf for the run.
  std::optional<Method> read_park(std::string_view parameter) {
    if (parameter != "attic" && !parameter.starts_with("cellar=")) return std::nullopt;
    return Method{.prepare = [this, place = std::string(parameter)](Method& method, c10::Device) {
      if (place == "cellar=") throw UsageError("no cellar");
      auto made = std::make_shared<Shelf>(place, shelves);
      shelf = made;
      method.around_forward = [made]() -> ContextScope {
        return std::make_shared<SavedTensorHooksScope>(
            [made](const at::Tensor& t) {
              ++made->put;
              return t.clone();
            },
            [made](const at::Tensor& kept) {
              ++made->taken;
              return kept;
            });
      };
    }};
  }

  // Regions around the blocks, each with a context of its own.
  std::optional<Method> read_watch(std::string_view parameter) {
    if (parameter != "blocks") return std::nullopt;
    return Method{.run = run_every_block, .set_options = [this](CheckpointOptions& options) {
                    options.context = [this] {
                      ++contexts;
                      return RegionContexts{};
                    };
                  }};
  }

  std::vector<StrategyKind> table() {
    std::vector<StrategyKind> kinds(strategy_kinds().begin(), strategy_kinds().end());
    kinds.push_back(
        {"park", {"attic", "cellar=DIR"}, [this](auto text) { return read_park(text); }});
    kinds.push_back({"watch", {"blocks"}, [this](auto text) { return read_watch(text); }});
    return kinds;
  }

  Strategy parse(std::string_view text) { return Strategy::parse(text, table()); }
};

std::vector<at::Tensor> gradients(const Strategy& strategy) {
  torch::manual_seed(5);
  Gpt model(GptOptions{.layers = 3, .width = 32, .heads = 4, .context = 16});
  Layers layers;
  for (const GptBlock& block : model->blocks()) {
    layers.push_back([block = block.ptr()](const at::Tensor& x) { return block->forward(x); });
  }
  const auto tokens = torch::randint(256, {2, 16}, at::kLong);
  at::Tensor loss;
  {
    const ContextScope around = strategy.around_forward();
    const auto x = strategy.run(layers, model->embed(tokens));
    loss = next_token_loss(model->head(x), tokens);
  }
  loss.backward();
  std::vector<at::Tensor> result{loss.detach()};
  for (const auto& parameter : model->parameters()) result.push_back(parameter.grad());
  return result;
}

void expect_plain_gradients(const Strategy& strategy) {
  const auto expected = gradients(Strategy::parse("none")), found = gradients(strategy);
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(expected[i].view(at::kInt), found[i].view(at::kInt))) << i;
  }
}

TEST(StrategyKinds, AScopeAroundForwardSeesTheWholeStep) {
  Kinds kinds;
  Strategy strategy = kinds.parse("park:attic");
  strategy.prepare(c10::kCPU);
  expect_plain_gradients(strategy);
  const auto shelf = kinds.shelf.lock();
  ASSERT_TRUE(shelf);
  EXPECT_EQ(shelf->place, "attic");
  // Embedding and loss save tensors too, not the blocks alone.
  EXPECT_GT(shelf->put, 3 * 10 + 3);
  EXPECT_EQ(shelf->taken, shelf->put);
}

TEST(StrategyKinds, ReadingATextOpensNothing) {
  Kinds kinds;
  kinds.parse("park:attic").check(4);
  EXPECT_EQ(kinds.shelves, 0);
}

TEST(StrategyKinds, CopiesShareWhatARunHolds) {
  Kinds kinds;
  {
    Strategy strategy = kinds.parse("park:cellar=here");
    strategy.prepare(c10::kCPU);
    strategy.prepare(c10::kCPU);
    const Strategy copy = strategy;
    EXPECT_EQ(copy.name(), "park:cellar=here");
    EXPECT_EQ(kinds.shelves, 1);
  }
  EXPECT_EQ(kinds.shelves, 0);
}

TEST(StrategyKinds, AStepThatNothingWasOpenedForIsRefused) {
  Kinds kinds;
  const Strategy strategy = kinds.parse("park:attic");
  const auto x = torch::ones({2});
  EXPECT_THAT(refusal_of([&] { strategy.run({}, x); }),
              HasSubstr("'park:attic' has opened nothing yet; call prepare(device)"));
  EXPECT_THAT(refusal_of([&] { strategy.around_forward(); }), HasSubstr("has opened nothing yet"));
}

TEST(StrategyKinds, WhatCannotBeOpenedIsRefusedAndCanBeTriedAgain) {
  Kinds kinds;
  Strategy strategy = kinds.parse("park:cellar=");
  for (int i : {1, 2}) {
    EXPECT_EQ(refusal_of([&] { strategy.prepare(c10::kCPU); }), "no cellar") << i;
  }
}

TEST(StrategyKinds, OptionsReachEveryRegion) {
  Kinds kinds;
  const Strategy strategy = kinds.parse("watch:blocks");
  expect_plain_gradients(strategy);
  EXPECT_EQ(kinds.contexts, 3);
  EXPECT_TRUE(strategy.recomputes());
  EXPECT_FALSE(kinds.parse("park:attic").recomputes());
}

TEST(StrategyKinds, OptionsThatReentrantRegionsCannotHaveAreRefusedBeforeAnyStep) {
  Kinds kinds;
  CheckpointOptions options;
  kinds.parse("watch:blocks").check(4, options);
  options.reentrant = true;
  EXPECT_THAT(
      refusal_of([&] { kinds.parse("watch:blocks").check(4, options); }),
      HasSubstr("'watch:blocks' works in non-reentrant regions only; leave out --reentrant"));
}

TEST(StrategyKinds, UnknownParametersAreRefusedWithTheChoices) {
  Kinds kinds;
  for (const char* text : {"park:tape", "park:", "park", "park:Attic", "park:cellar"}) {
    EXPECT_EQ(
        refusal_of([&] { kinds.parse(text); }),
        "unknown strategy '" + std::string(text) + "'; choose one of park:attic, park:cellar=DIR");
  }
  EXPECT_THAT(
      refusal_of([&] { kinds.parse("parks:attic"); }),
      HasSubstr("choose one of none, every-block, segments:K, sqrt, from-input, "
                "selective:matmul, selective:all-but-cheap, selective:recompute-attention, "
                "offload:disk=DIR, offload:host, park:attic, park:cellar=DIR, watch:blocks"));
  EXPECT_THAT(refusal_of([&] { Strategy::parse("park:attic"); }), HasSubstr("unknown strategy"));
}

}  // namespace
}  // namespace reprise::models
