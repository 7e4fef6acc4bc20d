// What observers are told of operators that write or draw, and what they are not told.
#include "libtorch/operators/operator_effects.h"

#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <string>
#include <thread>
#include <vector>

namespace reprise::libtorch {
namespace {

class Recorder final : public EffectObserver {
 public:
  explicit Recorder(bool settles = false) : settles_(settles) {}
  bool before_write(const at::Tensor& tensor) override {
    written.push_back(tensor.storage().unsafeGetStorageImpl());
    if (tensor.scalar_type() == at::kFloat && tensor.numel() == 1) {
      found.push_back(tensor.item<float>());
    }
    if (refuse) throw std::runtime_error("refused");
    return settles_;
  }
  bool before_draw(const at::Generator& generator) override {
    drawn.push_back(generator);
    return settles_;
  }

  bool has(const at::Tensor& tensor) const {
    return std::count(written.begin(), written.end(), tensor.storage().unsafeGetStorageImpl()) > 0;
  }

  std::vector<const c10::StorageImpl*> written;
  std::vector<float> found;
  std::vector<at::Generator> drawn;
  bool refuse = false;

 private:
  bool settles_;
};

// Runs `f` under an observer, inside of those in force.
template <class F>
void observe(const std::shared_ptr<Recorder>& recorder, F&& f) {
  auto state = copy_of_current_state();
  const EffectScope effects(*state, recorder);
  const ThreadStateScope in_force(std::move(state));
  f();
}

template <class F>
std::shared_ptr<Recorder> observed(F&& f) {
  auto recorder = std::make_shared<Recorder>();
  observe(recorder, f);
  return recorder;
}

TEST(OperatorEffects, WritesAreToldBeforeTheyHappen) {
  const at::Tensor x = torch::zeros({1});
  const auto recorder = observed([&] {
    x.add_(1);
    x.mul_(3);
    x.sigmoid_();
  });
  EXPECT_EQ(recorder->found, (std::vector<float>{0, 1, 3}));
  x.add_(1);
  EXPECT_EQ(recorder->found.size(), 3u) << "told after the scope";
}

TEST(OperatorEffects, EveryWayToWriteIsTold) {
  const at::Tensor x = torch::rand({2, 3});
  const at::Tensor index = torch::zeros({1}, torch::kLong);
  const std::vector<std::function<void()>> writes = {
      [&] {
        x.copy_(torch::ones({2, 3}));
      },
      [&] { x.zero_(); },
      [&] { x.fill_(2); },
      [&] { x.t().select(0, 1).relu_(); },
      [&] { x.data().add_(1); },
      [&] { x.detach().add_(1); },
      [&] { x.index_put_({index}, torch::ones({})); },
      [&] { x[0][0] = 5; },
      [&] {
        at::add_out(const_cast<at::Tensor&>(x), torch::ones({2, 3}), torch::ones({2, 3}));
      },
      [&] {
        at::_foreach_add_({torch::zeros({2}), x}, 1);
      },
      [&] { x.uniform_(); },
      [&] { torch::nn::init::normal_(x); },
      [&] { torch::dropout_(const_cast<at::Tensor&>(x), 0.5, true); },
      [&] {
        const c10::InferenceMode inference;
        x.add_(1);
      },
  };
  for (std::size_t i = 0; i < writes.size(); ++i) {
    EXPECT_TRUE(observed([&] {
                  const at::NoGradGuard no_grad;
                  writes[i]();
                })->has(x))
        << "write " << i;
  }
}

TEST(OperatorEffects, RunningStatisticsAreToldWhereTheyAreUpdated) {
  torch::nn::BatchNorm1d norm(3);
  const at::Tensor x = torch::randn({4, 3});
  const auto training = observed([&] { norm(x); });
  EXPECT_TRUE(training->has(norm->running_mean));
  EXPECT_TRUE(training->has(norm->running_var));
  EXPECT_TRUE(training->has(norm->num_batches_tracked));
  norm->eval();
  EXPECT_TRUE(observed([&] { norm(x); })->written.empty());
}

TEST(OperatorEffects, OperatorsThatOnlyComputeAreNotTold) {
  const at::Tensor x = torch::randn({4, 4}).requires_grad_(true);
  const auto recorder = observed([&] {
    x.mm(x).sin().softmax(1).view({16}).narrow(0, 0, 4).sum();
    x.t().detach();
    EXPECT_TRUE(torch::equal(x, x));
    x.detach().t_().unsqueeze_(0);
  });
  EXPECT_FALSE(recorder->has(x));
  EXPECT_TRUE(recorder->drawn.empty());
}

TEST(OperatorEffects, GeneratorsAreToldUnlessItIsTheDefaultOfTheCpu) {
  at::Generator own = at::detail::createCPUGenerator(4);
  const auto recorder = observed([&] {
    torch::rand({2});
    torch::zeros({2}).bernoulli_(0.5);
    EXPECT_TRUE(torch::dropout(torch::ones({2}), 0.5, true).defined());
  });
  EXPECT_TRUE(recorder->drawn.empty());
  const auto with_own = observed([&] {
    torch::rand({2}, own);
    torch::zeros({2}).bernoulli_(0.5, own);
    torch::randperm(4, own);
  });
  EXPECT_EQ(with_own->drawn, std::vector<at::Generator>(3, own));
}

TEST(OperatorEffects, ObserversAreToldFromTheInnermostOutward) {
  const at::Tensor x = torch::zeros({2});
  for (const bool settles : {false, true}) {
    const auto outer = std::make_shared<Recorder>();
    const auto inner = std::make_shared<Recorder>(settles);
    observe(outer, [&] {
      observe(inner, [&] { x.add_(1); });
      EXPECT_EQ(outer->written.size(), settles ? 0u : 1u);
      x.add_(1);
    });
    EXPECT_EQ(inner->written.size(), 1u);
    EXPECT_EQ(outer->written.size(), settles ? 1u : 2u);
  }
}

TEST(OperatorEffects, AnObserverThatThrowsLeavesTheTensorAsItWas) {
  const at::Tensor x = torch::zeros({2});
  const auto recorder = std::make_shared<Recorder>();
  recorder->refuse = true;
  observe(recorder, [&] {
    EXPECT_THROW(x.add_(1), std::runtime_error);
    EXPECT_THROW(x.sigmoid_(), std::runtime_error);
  });
  EXPECT_TRUE(x.eq(0).all().item<bool>());
  EXPECT_EQ(x._version(), 0);
}

TEST(OperatorEffects, BackwardInsideAScopeIsToldAndOtherThreadsAreNot) {
  const at::Tensor x = torch::ones({2}).requires_grad_(true);
  x.mutable_grad() = torch::ones({2});
  const auto recorder = observed([&] {
    (x * 2).sum().backward();
    std::thread([] { torch::zeros({2}).add_(1); }).join();
  });
  EXPECT_TRUE(recorder->has(x.grad()));
}

TEST(OperatorEffects, AThreadThatCarriesTheStateIsTold) {
  const at::Tensor x = torch::zeros({2});
  const auto recorder = observed([&] {
    std::thread([&, carried = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard guard(carried);
      x.add_(1);
    }).join();
  });
  EXPECT_TRUE(recorder->has(x));
}

TEST(OperatorEffects, CustomOperatorsAreToldWheneverTheyCame) {
  const at::Tensor x = torch::zeros({2});
  for (const char* name : {"first", "second"}) {
    torch::Library library(torch::Library::FRAGMENT, "reprise_effects", std::nullopt, __FILE__,
                           __LINE__);
    library.def((std::string(name) + "(Tensor(a!) x) -> ()").c_str(),
                [](const at::Tensor& tensor) { tensor.sigmoid_(); });
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow((std::string("reprise_effects::") + name).c_str(), "")
                        .typed<void(const at::Tensor&)>();
    // For itself, and for what it calls.
    EXPECT_EQ(observed([&] { op.call(x); })->written.size(), 2u) << name;
  }
}

TEST(OperatorEffects, AnOperatorMayBeDefinedAnew) {
  const at::Tensor x = torch::zeros({2});
  for (const bool writes : {true, false, true}) {
    torch::Library library(torch::Library::FRAGMENT, "reprise_effects", std::nullopt, __FILE__,
                           __LINE__);
    library.def(writes ? "anew(Tensor(a!) x) -> ()" : "anew(Tensor x) -> ()",
                [](const at::Tensor&) {});
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("reprise_effects::anew", "")
                        .typed<void(const at::Tensor&)>();
    EXPECT_EQ(observed([&] { op.call(x); })->has(x), writes);
  }
}

}  // namespace
}  // namespace reprise::libtorch
