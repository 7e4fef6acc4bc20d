// The traps in which a tape goes silently wrong: each test fails without its remedy.

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "libtorch/memory/counting_allocator.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::does_the_same_when_all_is_dropped;
using testing::is_right_when_all_is_dropped;
using testing::leaf;
using testing::paranoid;
using testing::same_bits;
using testing::Tensors;

struct Factory {
  const char* name;
  Tensor (*make)(const Tensor& like);
};

Tensor room() { return at::empty({4, 6}); }

constexpr Factory kFactories[] = {
    {"zeros",
     [](const Tensor&) {
       return at::zeros({4, 6});
     }},
    {"empty",
     [](const Tensor&) {
       return at::empty({4, 6}).fill_(2);
     }},
    {"empty_strided",
     [](const Tensor&) {
       return at::empty_strided({4, 6}, {1, 4}).zero_();
     }},
    {"full",
     [](const Tensor&) {
       return at::full({4, 6}, 3.0);
     }},
    {"rand",
     [](const Tensor&) {
       return at::rand({4, 6});
     }},
    {"arange",
     [](const Tensor&) {
       return at::arange(24., at::kFloat).view({4, 6});
     }},
    {"zeros_like", [](const Tensor& like) { return at::zeros_like(like); }},
    {"ones_like", [](const Tensor& like) { return at::ones_like(like); }},
    {"randn_like", [](const Tensor& like) { return at::randn_like(like); }},
    {"new_zeros",
     [](const Tensor& like) {
       return like.detach().new_zeros({4, 6});
     }},
    {"new_empty",
     [](const Tensor& like) {
       return like.detach().new_empty({4, 6}).fill_(1);
     }},
    {"zeros_out",
     [](const Tensor&) {
       Tensor out = room();
       return at::zeros_out(out, {4, 6});
     }},
    {"full_out",
     [](const Tensor&) {
       Tensor out = room();
       return at::full_out(out, {4, 6}, 1.5);
     }},
    {"normal_", [](const Tensor&) { return room().normal_(); }},
    {"uniform_", [](const Tensor&) { return room().uniform_(); }},
    {"zero_", [](const Tensor&) { return room().zero_(); }},
};

class Traps : public ::testing::TestWithParam<Factory> {};
INSTANTIATE_TEST_SUITE_P(Factories, Traps, ::testing::ValuesIn(kFactories),
                         [](const auto& info) { return info.param.name; });

TEST_P(Traps, WhatAFactoryMakesIsFilledUnseen) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor made = GetParam().make(x);
        x.sin();
        made.mutable_data_ptr<float>()[7] = 5;
        return (x * made).exp().mul(made);
      },
      {x}));
}

TEST(Trap, ABufferThatAnOperatorHasWhollyOverwrittenMayGo) {
  const Tensor x = leaf({4, 6});
  MemoryBudget budget(GiB(64), paranoid());
  auto step = budget.step();
  const Tensor buffer = at::zeros({4, 6});
  EXPECT_NO_THROW(buffer.mutable_data_ptr<float>());
  buffer.copy_(x.detach());
  EXPECT_THROW(buffer.mutable_data_ptr<float>(), c10::Error);
  step.finish();
  EXPECT_TRUE(same_bits(buffer, x));
}

TEST(Trap, VerifyFindsARawWriteToAResultThatIsDroppedLater) {
  const Tensor x = leaf({4, 6});
  BudgetOptions options = paranoid();
  options.verify = true;
  MemoryBudget budget(GiB(64), options);
  auto step = budget.step();
  const Tensor y = x.exp();
  {
    const Pin pin(y);
    y.mutable_data_ptr<float>()[2] += 1;
  }
  x.sin();  // y goes
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(testing::error_of<DeterminismError>([&] { y.cos(); }),
                ::testing::HasSubstr("aten::exp"));
  }
}

TEST(Trap, AWriteThroughDataIsANewVersionAlthoughAutogradSeesNone) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.exp();
        const Tensor before = h.sin();
        h.data().mul_(2);
        EXPECT_EQ(h._version(), 0);
        const Tensor between = h.cos();
        h.data().narrow(0, 1, 2).zero_();
        return before * between + h.tanh();
      },
      {x}));
}

TEST(Trap, AParameterThatIsWrittenBetweenTwoBackwardCalls) {
  for (const bool adam : {false, true}) {
    EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
      // Autograd saves no parameter here, so that it has nothing to object to.
      torch::nn::Linear layer(6, 8);
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (adam) {
        optimizer = std::make_unique<torch::optim::Adam>(layer->parameters());
      } else {
        optimizer = std::make_unique<torch::optim::SGD>(
            layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      }
      const Tensor x = at::randn({4, 6});
      const Tensor hidden = layer(x).sin();
      const Tensor first = hidden.exp().sum(), second = (layer(x * 2) * hidden).sin().sum();
      first.backward({}, /*retain_graph=*/true);
      optimizer->step();
      second.backward({}, /*retain_graph=*/true);
      optimizer->step();
      (first * second).backward();
      optimizer->step();
      Tensors result{hidden.detach().clone(), second.detach().clone()};
      for (const Tensor& p : layer->parameters()) {
        result.push_back(p.detach().clone());
        result.push_back(p.grad().clone());
      }
      return result;
    })) << (adam ? "Adam" : "SGD");
  }
}

TEST(Trap, RunningStatisticsMoveOncePerCallAndAreReadAsTheyWere) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    torch::nn::BatchNorm1d norm(6);
    const Tensor x = at::randn({8, 6}).requires_grad_();
    Tensor y = norm(x.sin());
    norm->eval();
    const Tensor z = norm(y.exp());  // reads the statistics
    norm->train();
    y = norm(z.cos());  // writes them
    (y * z).sum().backward();
    return Tensors{x.grad(), norm->running_mean, norm->running_var, norm->num_batches_tracked};
  }));
}

TEST(Trap, ReplayComputesInTheTypeThatAutocastChose) {
  const Tensor x = leaf({4, 6}), w = leaf({6, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        const Tensor h = x.mm(w);
        EXPECT_EQ(h.scalar_type(), at::kBFloat16);
        const Tensor y = h.sin().mm(w).to(at::kFloat).exp();
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        return y * h;
      },
      {x, w}));
  // The other way round: recorded without, replayed under autocast.
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.mm(w);
        at::autocast::set_autocast_enabled(at::kCPU, true);
        const Tensor y = h.sin().exp();
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        EXPECT_EQ(y.scalar_type(), at::kFloat);
        return y;
      },
      {x, w}));
}

TEST(Trap, RecordingRaisesNoUseCountSoThatAutogradStealsAndAddsInPlace) {
  const Tensor x = leaf({32, 32}), w = leaf({32, 32});
  const auto run = [&] {
    testing::take_gradients({x, w});
    const Tensor h = x.mm(w);
    EXPECT_EQ(h.use_count(), 1);
    EXPECT_EQ(h.storage().use_count(), 1);
    const c10::StorageImpl* arrived = nullptr;
    const auto hook = w.register_hook(
        [&](const Tensor& gradient) { arrived = gradient.storage().unsafeGetStorageImpl(); });
    const std::int64_t before = libtorch::cpu_allocation_count();
    (h + h.sin().mul(h) + h.exp() + x).sum().backward();
    w.remove_hook(hook);
    EXPECT_EQ(w.grad().storage().unsafeGetStorageImpl(), arrived);
    return libtorch::cpu_allocation_count() - before;
  };
  run();
  const std::int64_t plain = run();
  MemoryBudget budget(GiB(64));
  auto step = budget.step();
  EXPECT_EQ(run(), plain);
  step.finish();
  EXPECT_EQ(budget.report().dropped, 0);
}

TEST(Trap, AnOutputThatIsHeldWithItsGraphFormsNoCircle) {
  const Tensor x = leaf({16, 16});
  const Bytes before = live_bytes();
  testing::GraphWatch graph;
  {
    MemoryBudget budget(GiB(64), paranoid());
    auto step = budget.step();
    const Tensor y = x.exp().sigmoid().sqrt();  // each saves its own result
    graph.add(y);
  }
  EXPECT_GT(graph.seen(), 0);
  EXPECT_THAT(graph.alive(), ::testing::IsEmpty());
  EXPECT_EQ(live_bytes(), before);
}

TEST(Trap, WhatIsComputedFromForeignMemoryIsNotMadeAgainFromIt) {
  const Tensor x = leaf({4, 6});
  std::vector<float> memory(24);
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        memory.assign(24, 2.F);
        const Tensor blob = at::from_blob(memory.data(), {4, 6});
        const Tensor product = x * blob, copy = blob.clone();
        const Tensor filled = at::empty({4, 6}).copy_(blob);
        memory.assign(24, 1e30F);
        return (product + copy).sin() * filled;
      },
      {x}));
}

TEST(Trap, AnOutThatLiesInForeignMemoryIsNotDropped) {
  const Tensor x = leaf({4, 6}).detach();
  std::vector<float> memory(24);
  MemoryBudget budget(GiB(64), paranoid());
  auto step = budget.step();
  Tensor blob = at::from_blob(memory.data(), {4, 6});
  at::exp_out(blob, x);
  x.sin();
  EXPECT_EQ(blob.data_ptr<float>(), memory.data());
  step.finish();
  EXPECT_TRUE(same_bits(blob, x.exp()));
}

TEST(Trap, APinnedTensorStaysWhereItIs) {
  const Tensor x = leaf({4, 6});
  MemoryBudget budget(GiB(64), paranoid());
  auto step = budget.step();
  Tensor y = x.detach().exp();
  {
    const Pin pin(y);
    const float* const data = y.data_ptr<float>();
    const Tensor z = y.sin().cos();
    EXPECT_EQ(y.data_ptr<float>(), data);
    y.mul_(2);  // the pin goes with the bytes, not with the version
    z.exp();
    EXPECT_EQ(y.data_ptr<float>(), data);
  }
  x.sin();
  EXPECT_THROW(y.data_ptr<float>(), c10::Error);
  step.finish();
  EXPECT_TRUE(same_bits(y, x.exp() * 2));
}

TEST(Trap, OneOfSeveralResultsIsMadeAgainAfterAnotherWasChanged) {
  const Tensor x = leaf({4, 6}), w = leaf({6}), b = leaf({6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        auto [y, mean, deviation] = at::native_layer_norm(x.sin(), {6}, w, b, 1e-5);
        const Tensor before = y.detach().clone();
        y.mul_(2);
        return (y * before).sin() + mean.detach() * deviation.detach();
      },
      {x, w, b}));
}

TEST(Trap, AWriteToAPartKeepsTheRest) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        Tensor buffer = at::full({5, 4, 6}, 0.5).mul(1);
        for (int i = 0; i < 4; ++i) {
          buffer[i].copy_(buffer[i].clone().sin() * x + i);
        }
        return buffer.exp().sum(0) * buffer[2];
      },
      {x}));
}

TEST(Trap, AnOutThatBecomesSmallerKeepsWhatLiesBehindIt) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::arange(12., at::kFloat).sin();
    Tensor whole = x.exp();
    Tensor out = whole.alias();
    const testing::WarningLog log;
    at::cos_out(out, x.narrow(0, 0, 5).clone());
    return Tensors{whole.clone(), out.clone()};
  }));
}

TEST(Trap, SeveralViewsOfOneMemoryAreWrittenByOneCall) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6}).sin();
    const Tensor h = x.exp(), rows = x.cos(), square = x * 2;
    at::_foreach_add_({h[0], h[2]}, {h[1], rows[2]});
    at::_foreach_mul_({rows[0], rows[3], h[3]}, 3);
    Tensor least = h.select(0, 1), most = h.select(0, 2);
    at::aminmax_out(least, most, x, 0);
    square.mul_(square);
    square[1].add_(square[2]);
    return Tensors{h, rows, square};
  }));
}

TEST(Trap, ARootWhoseLastHolderLetsGoIsThereForReplays) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        Tensor y;
        {
          const Tensor noise = at::rand({4, 6});
          y = (x * noise).sin();
        }
        return y.exp() * y;
      },
      {x}));
}

TEST(Trap, ATensorWithoutBytesIsNoRootWithoutMemory) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor zero = at::_efficientzerotensor({4, 6});
        const Tensor sum = x.exp() + zero;
        return (sum * zero + sum).sin();
      },
      {x}));
}

TEST(Trap, NumbersKeepTheirWeakTypes) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.to(at::kBFloat16).exp();
        const Tensor y = h * 2.5 + at::ones({}, at::kDouble);
        EXPECT_EQ(y.scalar_type(), at::kBFloat16);
        return (y / 3).to(at::kFloat) * (h * at::scalar_tensor(1.5)).to(at::kFloat);
      },
      {x}));
}

}  // namespace
}  // namespace reprise
