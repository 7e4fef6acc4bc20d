// Steps on several threads: over models of their own, over shared parameters, under one budget or
// several; and tensors of a step in the hands of other threads.

#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <optional>
#include <set>

#include "libtorch/operators/operator_interceptor.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::on_threads;
using testing::paranoid;
using testing::same_bits;
using testing::Tensors;

constexpr int kThreads = 3;

// A model with draws of its own.
struct Model {
  explicit Model(int number) : generator(at::detail::createCPUGenerator(number)) {
    w = at::randn({12, 12}, generator).requires_grad_();
    x = at::randn({12, 12}, generator).requires_grad_();
  }
  Tensor operator()() {
    Tensor y = x;
    for (int i = 0; i < 6; ++i) {
      y = y.mm(w).tanh() * at::bernoulli(y.detach().sigmoid(), generator);
      y = (y.exp() * 2).add_(x).tanh();
    }
    return y;
  }
  Tensors gradients(MemoryBudget* budget) {
    generator.set_current_seed(3);
    testing::take_gradients({x, w});
    std::optional<MemoryBudget::Step> step;
    if (budget != nullptr) step.emplace(budget->step());
    (*this)().sum().backward();
    if (step) step->finish();
    return testing::take_gradients({x, w});
  }
  at::Generator generator;
  Tensor w, x;
};

TEST(TapeThreads, ModelsOfTheirOwnOnSeveralThreads) {
  for (const bool one_budget : {true, false}) {
    MemoryBudget shared(GiB(64), paranoid());
    std::atomic<int> wrong{0};
    on_threads(kThreads, [&](int number) {
      Model model(number);
      MemoryBudget own(GiB(64), paranoid());
      const Tensors plain = model.gradients(nullptr);
      for (int i = 0; i < 10; ++i) {
        wrong += !same_bits(model.gradients(one_budget ? &shared : &own), plain);
      }
    });
    EXPECT_EQ(wrong, 0);
  }
}

TEST(TapeThreads, ABudgetIsKeptOverAllThreads) {
  // Made before the threads begin: while a step of another thread is on its way, what is made
  // outside of a step counts, and the step may be refused for it.
  std::vector<Model> models;
  std::vector<Tensors> plain;
  for (int number = 0; number < kThreads; ++number) {
    plain.push_back(models.emplace_back(number).gradients(nullptr));
  }
  const Bytes limit = testing::limit_at(1.2 * kThreads, [&] { models[0].gradients(nullptr); });
  for (const bool one_budget : {true, false}) {
    MemoryBudget shared(limit, {.min_bytes = Bytes(1)});
    std::atomic<int> wrong{0}, over{0}, refused{0};
    on_threads(kThreads, [&](int number) {
      MemoryBudget own(limit, {.min_bytes = Bytes(1)});
      MemoryBudget& budget = one_budget ? shared : own;
      for (int i = 0; i < 20; ++i) {
        try {
          wrong += !same_bits(models[number].gradients(&budget), plain[number]);
        } catch (const BudgetError&) {
          ++refused;
        }
        const StepReport report = budget.report();
        over += report.peak > limit + report.other_threads;
      }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(over, 0);
    EXPECT_LT(refused, kThreads * 20);
  }
}

TEST(TapeThreads, StepsThatShareParametersEndInAnyOrder) {
  const Tensor w = leaf({12, 12});
  MemoryBudget budget(GiB(64), paranoid());
  std::atomic<int> wrong{0};
  on_threads(kThreads, [&](int number) {
    const Tensor x = at::full({12, 12}, 0.1 * (number + 1)).requires_grad_();
    const auto gradients = [&] {
      const Tensor y = x.mm(w).tanh().mm(w).exp() * w;
      return torch::autograd::grad({y.sum()}, {x, w});
    };
    const auto plain = gradients();
    for (int i = 0; i < 40; ++i) {
      std::optional<MemoryBudget::Step> step(budget.step());
      const auto mine = gradients();
      if (i % 3 == number) step->finish();
      step.reset();
      wrong += !same_bits(mine[0], plain[0]) || !same_bits(mine[1], plain[1]);
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(TapeThreads, AStepEndsWhileAnotherReadsWhatItManages) {
  const Tensor w = leaf({12, 12});
  MemoryBudget budget(GiB(64), paranoid());
  std::atomic<int> stage{0};
  const auto reach = [&](int next) { stage = next; };
  const auto await = [&](int wanted) {
    while (stage < wanted) std::this_thread::yield();
  };
  // Stops the other thread in the middle of an operator.
  class Stopping final : public libtorch::OperatorInterceptor {
   public:
    explicit Stopping(std::function<void()> stop) : stop_(std::move(stop)) {}
    void intercept(libtorch::OperatorCall& call) override {
      if (call.schema().name() == "aten::mm") stop_();
    }

   private:
    std::function<void()> stop_;
  };
  Tensor product;
  std::thread other([&] {
    await(1);
    const libtorch::OperatorInterceptorScope scope(std::make_shared<Stopping>([&] {
      reach(2);
      await(3);
    }));
    auto step = budget.step();
    product = w.mm(w);
    product.sin();
    step.finish();
  });
  {
    auto step = budget.step();
    const Tensor y = w.exp();  // this step's from now on
    reach(1);
    await(2);
    y.sum();
    step.finish();
  }
  reach(3);
  other.join();
  EXPECT_TRUE(same_bits(product, w.mm(w)));
}

TEST(TapeThreads, DrawsFromOneGeneratorAreNeitherSeenNorDisturbed) {
  MemoryBudget budget(GiB(64), paranoid());
  std::atomic<int> wrong{0};
  std::mutex mutex;
  std::multiset<std::int64_t> drawn;
  on_threads(kThreads, [&](int number) {
    const Tensor x = at::full({8, 8}, 1. + number).requires_grad_();
    std::vector<std::int64_t> mine;
    for (int i = 0; i < 30; ++i) {
      auto step = budget.step();
      const Tensor y = at::dropout(x * 2, 0.5, /*train=*/true);
      const Tensor mask = (y.detach() != 0).to(at::kFloat) * 4;
      const Tensor numbers = at::empty({4}, at::kLong).random_();
      const auto gradient = torch::autograd::grad({y.sum()}, {x})[0];
      step.finish();
      wrong += !same_bits(gradient, mask);  // the mask of backward is that of forward
      for (int k = 0; k < 4; ++k) mine.push_back(numbers[k].item<std::int64_t>());
    }
    const std::lock_guard<std::mutex> lock(mutex);
    drawn.insert(mine.begin(), mine.end());
  });
  EXPECT_EQ(wrong, 0);
  for (const std::int64_t number : drawn) EXPECT_EQ(drawn.count(number), 1);
}

TEST(TapeThreads, DrawsOfAThreadWithoutAStepAreNeitherSeenNorDisturbed) {
  const Tensor x = at::full({8, 8}, 2.).requires_grad_();
  MemoryBudget budget(GiB(64), paranoid());
  std::atomic<bool> done{false};
  std::multiset<std::int64_t> drawn;
  const auto draw = [&](std::multiset<std::int64_t>& into) {
    const Tensor numbers = at::empty({4}, at::kLong).random_();
    for (int k = 0; k < 4; ++k) into.insert(numbers[k].item<std::int64_t>());
  };
  std::multiset<std::int64_t> theirs;
  std::thread other([&] {
    while (!done) draw(theirs);
  });
  int wrong = 0;
  for (int i = 0; i < 200; ++i) {
    Tensor mask, gradient;
    {
      auto step = budget.step();
      const Tensor y = at::dropout(x, 0.5, /*train=*/true);
      mask = (y.detach() != 0).to(at::kFloat) * 2;
      gradient = torch::autograd::grad({y.sum()}, {x})[0];
      step.finish();
    }
    wrong += !same_bits(gradient, mask);
    draw(drawn);
  }
  done = true;
  other.join();
  EXPECT_EQ(wrong, 0);
  drawn.insert(theirs.begin(), theirs.end());
  for (const std::int64_t number : drawn) EXPECT_EQ(drawn.count(number), 1);
}

TEST(TapeThreads, ReadingWhatIsGoneOnAnotherThreadSaysWhatToDo) {
  MemoryBudget budget(GiB(64), paranoid());
  auto step = budget.step();
  const Tensor y = leaf({4, 6}).detach().exp();
  std::string text;
  std::thread([&] { text = testing::error_of<c10::Error>([&] { y.sum(); }); }).join();
  EXPECT_THAT(text, ::testing::HasSubstr("hold a reprise::Pin on it"));
  std::thread([&] {
    const Pin pin(y);
    EXPECT_NO_THROW(y.sum());
  }).join();
  std::thread([&] {
    auto mine = budget.step();
    EXPECT_NO_THROW(y.sum());
  }).join();
  step.finish();
}

TEST(TapeThreads, BackwardOnAThreadThatTookTheStateAlong) {
  const Tensor x = leaf({8, 8});
  const auto f = [&] { return at::dropout(x.sin().exp(), 0.5, true).tanh(); };
  const Tensors plain = testing::plain_gradients(f, {x});
  MemoryBudget budget(GiB(64), paranoid());
  at::manual_seed(7);
  auto step = budget.step();
  const Tensor loss = f().sum();
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    loss.backward();
  }).join();
  step.finish();
  EXPECT_TRUE(same_bits(testing::take_gradients({x}), plain));
}

TEST(TapeThreads, BackwardOnAThreadWithoutTheStateIsAnErrorAndNoWrongNumber) {
  const Tensor x = leaf({8, 8});
  MemoryBudget budget(GiB(64), paranoid());
  {
    auto step = budget.step();
    const Tensor loss = x.sin().exp().tanh().sum();
    std::thread([&] {
      EXPECT_THAT(testing::error_of<c10::Error>([&] { loss.backward(); }),
                  ::testing::HasSubstr("hold a reprise::Pin on it"));
    }).join();
  }
  EXPECT_TRUE(same_bits(testing::gradients_under(budget, [&] { return x.sin(); }, {x}),
                        testing::plain_gradients([&] { return x.sin(); }, {x})));
}

TEST(TapeThreads, TensorsDieOnOneThreadWhileAnotherMakesRoom) {
  const Bytes before = live_bytes();
  {
    MemoryBudget budget(live_bytes() + KiB(600), {.min_bytes = Bytes(1)});
    std::atomic<int> wrong{0}, refused{0};
    on_threads(kThreads, [&](int number) {
      const Tensor x = at::full({32, 32}, 0.5 + number);
      const Tensor right = x.sin().exp();
      for (int round = 0; round < 4; ++round) {
        auto step = budget.step();
        Tensors window;
        for (int i = 0; i < 300; ++i) {
          try {
            window.push_back(x.sin().exp());
            if (window.size() > 40) {
              wrong += !window[7].equal(right);
              window.erase(window.begin() + i % 30, window.begin() + i % 30 + 10);
            }
          } catch (const BudgetError&) {
            ++refused;
            window.clear();
          }
        }
      }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_LT(refused, 100);
  }
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace
}  // namespace reprise
