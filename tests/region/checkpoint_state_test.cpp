// State that a region's function writes to, although it was there before the region: a step with
// regions leaves it as the plain step does, and the recomputation starts from it as forward found
// it.
#include <torch/library.h>

#include <reprise/sequential.h>

#include <thread>

#include "tests/region/stateful.h"

namespace reprise {
namespace {

using namespace reprise::testing;

class CheckpointState : public ::testing::TestWithParam<Variant> {
 protected:
  // A step through one region leaves what the plain step leaves.
  void expect_as_plain(const Maker& make) {
    EXPECT_TRUE(same_bits(after_region(make, options_), after_plain_step(make)));
  }
  CheckpointOptions options_ = options_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointState,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

// pytorch#96136
TEST_P(CheckpointState, BatchNormIsUpdatedOnce) {
  using Options = torch::nn::BatchNorm1dOptions;
  expect_as_plain([] { return batch_norm(Options(4)); });
  expect_as_plain([] { return batch_norm(Options(4).affine(false)); });
  expect_as_plain([] { return batch_norm(Options(4).momentum(std::nullopt)); });
  expect_as_plain([] { return batch_norm(Options(4).track_running_stats(false)); });
  expect_as_plain([] { return batch_norm(Options(4), /*training=*/false); });
  expect_as_plain([] {
    return norm_subject(torch::nn::BatchNorm2d(2), [](const at::Tensor& x) {
      return x.view({3, 2, 2, 2});
    });
  });
  expect_as_plain([] {
    return norm_subject(
        torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(2).track_running_stats(true)),
        [](const at::Tensor& x) {
          return x.view({3, 2, 4});
        });
  });
}

TEST_P(CheckpointState, AModuleGivenAsFunctionKeepsItsStatisticsToo) {
  torch::nn::Sequential twice(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4),
                              torch::nn::Functional(torch::relu), torch::nn::BatchNorm1d(4));
  const at::Tensor x = input();
  checkpoint(options_, twice, x).sum().backward();
  for (const auto& entry : twice->named_buffers()) {
    if (entry.key().find("num_batches") == std::string::npos) continue;
    EXPECT_EQ(entry.value().item<std::int64_t>(), 1) << entry.key();
  }
}

TEST_P(CheckpointState, WithoutPreserveStateBothRunsCount) {
  options_.preserve_state = false;
  const auto make = [] { return batch_norm(torch::nn::BatchNorm1dOptions(4)); };
  EXPECT_FALSE(same_bits(after_region(make, options_), after_plain_step(make)));
  EXPECT_FALSE(same_bits(after_region(counter, options_), after_plain_step(counter)));
}

TEST_P(CheckpointState, TheRecomputationStartsFromTheStateThatForwardFound) {
  expect_as_plain(power_iteration);
  expect_as_plain(counter);
  expect_as_plain(written_twice);
}

TEST_P(CheckpointState, StateIsUndoneWhateverChecksAndReplaysThereAre) {
  for (const bool random : {true, false}) {
    for (const DeterminismCheck check : {DeterminismCheck::kNone, DeterminismCheck::kValues}) {
      options_.preserve_rng_state = random;
      options_.determinism_check = check;
      expect_as_plain(power_iteration);
    }
  }
}

TEST_P(CheckpointState, LaterBackwardCallsStartFromTheSameState) {
  torch::manual_seed(3);
  const Subject subject = power_iteration();
  const at::Tensor x = input();
  const at::Tensor loss = checkpoint(options_, subject.body, x).sum();
  const Tensors after_forward = {subject.state[0].clone(), subject.state[1].clone()};
  Tensors first;
  for (int i = 0; i < 3; ++i) {
    loss.backward({}, /*retain_graph=*/true);
    const Tensors gradients = take_gradients({x, subject.parameters[0]});
    if (i == 0) first = gradients;
    EXPECT_TRUE(same_bits(gradients, first)) << i;
    EXPECT_TRUE(same_bits(subject.state, after_forward)) << i;
  }
}

TEST_P(CheckpointState, RegionsThatShareStateEachReplayTheirTurn) {
  // Reentrant regions add up the gradient of a shared parameter in another order.
  const auto without_parameters = [] {
    Subject subject = power_iteration();
    subject.parameters.clear();
    return subject;
  };
  const auto chain = [&](const auto& wrap) {
    return after_step(without_parameters, [&](const auto& body, const at::Tensor& x) {
      return wrap(body, wrap(body, wrap(body, x)));
    });
  };
  const Tensors expected = chain([](const auto& body, const at::Tensor& x) { return body(x); });
  EXPECT_TRUE(same_bits(
      chain([&](const auto& body, const at::Tensor& x) { return checkpoint(options_, body, x); }),
      expected));
}

TEST_P(CheckpointState, ChangesBetweenForwardAndBackwardAreKept) {
  const Subject subject = written_twice();
  const at::Tensor x = input();
  const at::Tensor loss = checkpoint(options_, subject.body, x).sum();
  subject.state[0].fill_(7);
  loss.backward();
  EXPECT_TRUE(same_bits(subject.state[0], torch::full({4}, 7.0)));
  const Tensors gradients = take_gradients({x});
  const Subject again = written_twice();
  EXPECT_TRUE(same_bits(gradients, gradients_of([&] { return again.body(x); }, {x})));
}

TEST_P(CheckpointState, NestedRegionsWriteToStateOnce) {
  const auto nest = [&](const auto& wrap) {
    return after_step(written_twice, [&](const auto& body, const at::Tensor& x) {
      const auto middle = [&wrap, body](const at::Tensor& t) { return wrap(body, t.cos()).sin(); };
      const auto outer = [&wrap, body, middle](const at::Tensor& t) {
        return wrap(body, wrap(middle, body(t).exp()).tanh());
      };
      return wrap(outer, x);
    });
  };
  const Tensors expected = nest([](const auto& body, const at::Tensor& x) { return body(x); });
  EXPECT_TRUE(same_bits(
      nest([&](const auto& body, const at::Tensor& x) { return checkpoint(options_, body, x); }),
      expected));
}

TEST_P(CheckpointState, SegmentsOfAChainKeepTheirStatistics) {
  const auto chain = [&](bool regions) {
    torch::manual_seed(8);
    std::vector<torch::nn::BatchNorm1d> norms;
    std::vector<TensorFunction> functions;
    Tensors state;
    for (int i = 0; i < 6; ++i) {
      torch::nn::BatchNorm1d norm(4);
      functions.push_back([norm](const at::Tensor& x) mutable { return norm(x).tanh(); });
      for (const at::Tensor& buffer : norm->buffers()) state.push_back(buffer);
    }
    const at::Tensor x = input();
    Tensors result = gradients_of(
        [&] {
          if (regions) return checkpoint_sequential(functions, 3, x, options_);
          at::Tensor y = x;
          for (const TensorFunction& function : functions) y = function(y);
          return y;
        },
        {x});
    result.insert(result.end(), state.begin(), state.end());
    return result;
  };
  EXPECT_TRUE(same_bits(chain(true), chain(false)));
}

TEST_P(CheckpointState, AnErrorInARecomputationLeavesTheStateAsItWas) {
  const at::Tensor count = torch::zeros({2});
  int runs = 0;
  const auto body = [&](const at::Tensor& x) {
    count.add_(1);
    const at::Tensor y = x.sin();
    count.mul_(2);
    if (++runs == 2) throw std::runtime_error("the second run fails");
    return y.exp();
  };
  const at::Tensor x = input();
  const at::Tensor loss = checkpoint(options_, body, x).sum();
  const auto version = count._version();
  EXPECT_TRUE(contains(error_of<std::runtime_error>([&] { loss.backward({}, true); }), "fails"));
  EXPECT_TRUE(same_bits(count, torch::full({2}, 2.0)));
  EXPECT_EQ(count._version(), version);
  loss.backward();
  EXPECT_TRUE(same_bits(count, torch::full({2}, 2.0)));
}

TEST_P(CheckpointState, VersionsAreAfterARecomputationWhatTheyWereBefore) {
  const at::Tensor state = torch::ones({4});
  const auto body = [&](const at::Tensor& x) {
    state.mul_(2);
    return (x * state.sum()).sin();
  };
  const at::Tensor x = input();
  const auto run = [&](auto&& f) {
    // Saved outside of the region, after it wrote.
    const at::Tensor y = f(x);
    return (y * state).sum();
  };
  run([&](const at::Tensor& t) { return checkpoint(options_, body, t); }).backward();
  const Tensors actual = take_gradients({x});
  state.fill_(1);
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return run(body); }, {x})));
  // As the plain step: a change after it was saved is an error.
  const at::Tensor loss = run([&](const at::Tensor& t) { return checkpoint(options_, body, t); });
  state.add_(1);
  EXPECT_TRUE(contains(error_of<c10::Error>([&] { loss.backward(); }), "inplace operation"));
}

TEST_P(CheckpointState, StateMayBeASliceOfALargeBuffer) {
  const at::Tensor cache = torch::zeros({1000, 4});
  const auto body = [&](const at::Tensor& x) {
    cache.narrow(0, 10, 2).add_(1);
    return (x * cache.narrow(0, 9, 4).sum()).sin();
  };
  const at::Tensor x = input();
  const Bytes before = live_bytes();
  const at::Tensor loss = checkpoint(options_, body, x).sum();
  EXPECT_LT((live_bytes() - before).count, cache.nbytes() / 4);
  // What is not written to belongs to others.
  cache.narrow(0, 500, 100).fill_(3);
  const at::Tensor expected = cache.clone();
  loss.backward();
  EXPECT_TRUE(same_bits(cache, expected));
  const Tensors actual = take_gradients({x});
  cache.zero_();
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return body(x); }, {x})));
}

TEST_P(CheckpointState, StateThatIsGoneOrSmallerByThenIsLeftAlone) {
  auto gone = std::make_shared<at::Tensor>(torch::zeros({4}));
  const at::Tensor smaller = torch::zeros({100});
  const auto body = [gone, smaller](const at::Tensor& x) {
    if (gone->defined()) gone->add_(1);
    if (smaller.numel() > 4) smaller.add_(1);
    return x.sin();
  };
  const at::Tensor x = input();
  const at::Tensor loss = checkpoint(options_, body, x).sum();
  *gone = at::Tensor();
  smaller.set_(torch::ones({4}));
  loss.backward();
  EXPECT_TRUE(same_bits(smaller, torch::ones({4})));
}

TEST_P(CheckpointState, TensorsOfInferenceModeAreStateToo) {
  at::Tensor count;
  {
    const c10::InferenceMode inference;
    count = torch::zeros({2});
  }
  const auto body = [&](const at::Tensor& x) {
    {
      const c10::InferenceMode inference;
      count.add_(1);
    }
    return x.sin();
  };
  checkpoint(options_, body, input()).sum().backward();
  EXPECT_TRUE(count.eq(1).all().item<bool>());
}

TEST_P(CheckpointState, StateMadeByTheFirstRunIsNotAdvancedByTheSecond) {
  at::Tensor cache;
  const auto body = [&](const at::Tensor& x) {
    if (cache.defined()) {
      cache.add_(1);
    } else {
      cache = torch::zeros({4});
      cache.fill_(5);
    }
    return x.sin();
  };
  checkpoint(options_, body, input()).sum().backward();
  EXPECT_TRUE(same_bits(cache, torch::full({4}, 5.0)));
}

TEST_P(CheckpointState, ACacheThatIsFilledOnceIsReadAsItWasFilled) {
  // What says that it is filled is no tensor, and so is not turned back.
  const at::Tensor cache = torch::zeros({4});
  const at::Tensor count = torch::zeros({4});
  bool filled = false;
  int runs = 0;
  const auto body = [&](const at::Tensor& x) {
    ++runs;
    count.add_(1);
    const at::Tensor y = (x + count.clone()).sin();
    if (!filled) cache.copy_(torch::arange(4));
    filled = true;
    return (y * cache.clone()).cos();
  };
  const at::Tensor x = input();
  const at::Tensor loss = checkpoint(options_, body, x).sum();
  for (int i = 0; i < 2; ++i) {
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(runs, i == 0 ? 3 : 4) << "the region has learned which state to leave alone";
    const Tensors actual = take_gradients({x});
    EXPECT_TRUE(same_bits(cache, torch::arange(4).to(torch::kFloat)));
    EXPECT_TRUE(same_bits(count, torch::ones({4})));
    const at::Tensor y = ((x + 1).sin() * cache).cos();
    y.sum().backward();
    EXPECT_TRUE(same_bits(actual, take_gradients({x})));
  }
}

TEST_P(CheckpointState, WorkOnOtherThreadsThatCarryTheStateIsUndoneToo) {
  const at::Tensor count = torch::zeros({4});
  const auto body = [&](const at::Tensor& x) {
    at::Tensor own;
    std::thread worker([&, carried = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard guard(carried);
      const at::NoGradGuard no_grad;
      count.add_(1);
      own = torch::zeros({4});
      own.add_(count);
    });
    worker.join();
    return (x * own).sin();
  };
  const at::Tensor x = input();
  checkpoint(options_, body, x).sum().backward();
  EXPECT_TRUE(same_bits(count, torch::ones({4})));
  const Tensors actual = take_gradients({x});
  count.zero_();
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return body(x); }, {x})));
}

TEST_P(CheckpointState, ThreadsWithModelsOfTheirOwnDoNotMeet) {
  const auto make = [] { return batch_norm(torch::nn::BatchNorm1dOptions(4)); };
  const Tensors expected = after_plain_step(make);
  std::vector<std::function<void()>> steps;
  for (int i = 0; i < 2; ++i) {
    torch::manual_seed(3);
    steps.emplace_back([&, subject = make(), x = input()] {
      for (int step = 0; step < 20; ++step) {
        subject.state[0].zero_();
        subject.state[1].fill_(1);
        checkpoint(options_, subject.body, x).sum().backward();
        const Tensors gradients = take_gradients({x});
        EXPECT_TRUE(same_bits(gradients[0], expected[2]));
        EXPECT_TRUE(same_bits(subject.state[0], expected[3]));
        EXPECT_TRUE(same_bits(subject.state[1], expected[4]));
      }
    });
  }
  // A region sets back the generator that all threads draw from: the models are made before.
  std::vector<std::thread> threads;
  for (const auto& step : steps) threads.emplace_back(step);
  for (std::thread& thread : threads) thread.join();
}

// An operator of somebody else's, as plain loops over memory.
at::Tensor count_up(at::Tensor count, const at::Tensor& x) {
  float* data = count.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < count.numel(); ++i) data[i] += 1;
  return x.clone();
}

TEST_P(CheckpointState, CustomOperatorsThatSayWhatTheyWriteAreUndone) {
  // Once before any region has run in this process, perhaps, and once after.
  for (const char* name : {"count_up", "count_up_late"}) {
    torch::Library library(torch::Library::FRAGMENT, "reprise_state", std::nullopt, __FILE__,
                           __LINE__);
    library.def((std::string(name) + "(Tensor(a!) count, Tensor x) -> Tensor").c_str());
    library.impl(name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &count_up));
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow((std::string("reprise_state::") + name).c_str(), "")
                        .typed<at::Tensor(at::Tensor, const at::Tensor&)>();
    const at::Tensor count = torch::zeros({3});
    const auto body = [&](const at::Tensor& x) {
      op.call(count, x.detach());
      return x.sin();
    };
    checkpoint(options_, body, input()).sum().backward();
    EXPECT_TRUE(same_bits(count, torch::ones({3}))) << name;
  }
}

}  // namespace
}  // namespace reprise
