// Whole steps under an offload scope, with every store: bitwise the plain gradients, in less
// memory, also when the disk fails.
#include <reprise/offload.h>

#include <thread>

#include "tests/region/random_program.h"
#include "tests/store/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

class OffloadStep : public ::testing::TestWithParam<StoreCase> {
 protected:
  Faults faults_;
  std::shared_ptr<Store> store_ = GetParam().make(faults_);
};
INSTANTIATE_TEST_SUITE_P(Stores, OffloadStep, ::testing::ValuesIn(exact_store_cases()),
                         [](const auto& info) { return info.param.name; });

// Views, in-place changes, dropout, and a storage that many tensors lie on.
struct Network {
  torch::nn::Linear qkv{16, 48}, out{16, 16};
  torch::nn::Conv1d conv{torch::nn::Conv1dOptions(8, 8, 3).padding(1)};
  at::Tensor input = torch::randn({4, 8, 16});

  at::Tensor forward() {
    const auto parts = qkv->forward(torch::layer_norm(input, {16})).chunk(3, 2);
    at::Tensor y = parts[0].bmm(parts[1].transpose(1, 2)).softmax(2).bmm(parts[2]);
    y = torch::dropout(y, 0.3, /*train=*/true);
    y = conv->forward(y).relu_();
    y = out->forward(y.transpose(0, 1).contiguous()).add_(1).sigmoid();
    const auto [values, indices] = y.sort(2);
    return values.slice(2, 0, 16, 2) * y.slice(2, 1, 16, 2) + values.gather(2, indices).mean();
  }
  Tensors parameters() const {
    Tensors all;
    for (const torch::nn::Module* module : {static_cast<const torch::nn::Module*>(qkv.get()),
                                            static_cast<const torch::nn::Module*>(out.get()),
                                            static_cast<const torch::nn::Module*>(conv.get())}) {
      for (const at::Tensor& parameter : module->parameters()) all.push_back(parameter);
    }
    return all;
  }
};

TEST_P(OffloadStep, GradientsAreThoseOfThePlainStepBitByBit) {
  Network network;
  const auto offloaded = [&] {
    const OffloadScope scope(store_, Bytes(0));
    return network.forward();
  };
  const Tensors plain = gradients_of([&] { return network.forward(); }, network.parameters());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(gradients_of(offloaded, network.parameters()), plain));
    EXPECT_EQ(store_->statistics().count, 0);
  }
}

// pytorch#193671: autograd saves the noise before it is drawn.
TEST_P(OffloadStep, NoiseThatIsSavedBeforeItIsDrawnStays) {
  const at::Tensor x = leaf({64, 64});
  const auto f = [&] { return at::rrelu(x * 2, 0.1, 0.6, /*training=*/true).sin(); };
  const Tensors plain = gradients_of(f, {x});
  const auto offloaded = [&] {
    const OffloadScope scope(store_, Bytes(0));
    return f();
  };
  EXPECT_TRUE(same_bits(gradients_of(offloaded, {x}), plain));
}

TEST_P(OffloadStep, SecondDerivativesAreThoseOfThePlainStep) {
  const at::Tensor x = leaf(), w = leaf();
  const auto both = [&](bool offload) {
    std::optional<OffloadScope> scope;
    if (offload) scope.emplace(store_, Bytes(0));
    const at::Tensor loss = ((x * w).exp() * x.sin() * w).sum();
    Tensors first = torch::autograd::grad({loss}, {x, w}, {}, true, /*create_graph=*/true);
    const at::Tensor norm = first[0].pow(2).sum() + first[1].exp().sum();
    scope.reset();
    const Tensors second = torch::autograd::grad({norm}, {x, w});
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  EXPECT_TRUE(same_bits(both(true), both(false)));
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_P(OffloadStep, AnyProgramWithRegionsInItHasThePlainGradients) {
  EXPECT_TRUE(rc::check("gradients are bitwise those of the plain program", [&] {
    const Program program = *large(program_of(1, /*allow_reentrant=*/false));
    const bool regions = *rc::gen::arbitrary<bool>();
    const int backwards = *rc::gen::inRange(1, 3);
    const Bytes minimum(*rc::gen::element(0, 0, 100, 1000));
    const Bytes hold(*rc::gen::element(0, 200, 1000'000));
    RC_LOG() << describe(program) << std::endl;
    const auto gradients = [&](bool offload) {
      torch::manual_seed(42);
      const auto doubles = torch::dtype(torch::kDouble).requires_grad(true);
      const at::Tensor x = torch::randn({4, 4}, doubles), y = torch::randn({4, 4}, doubles),
                       w = torch::randn({4, 4}, doubles);
      ProgramState state;
      at::Tensor loss;
      {
        std::optional<OffloadScope> scope;
        if (offload) scope.emplace(store_, OffloadOptions{.min_bytes = minimum, .hold = hold});
        Tensors values = {x, y, x * y};
        run(program, values, w, state, offload && regions);
        loss = (w * values.back()).sum();
        for (std::size_t i = 2; i < values.size(); ++i) loss = loss + values[i].mean();
      }
      for (int i = 1; i <= backwards; ++i) loss.backward({}, /*retain_graph=*/i < backwards);
      return take_gradients({x, y, w});
    };
    const auto same = same_bits(gradients(true), gradients(false));
    if (!same) RC_FAIL(same.message());
    RC_ASSERT(store_->statistics().count == 0);
  }));
}

TEST_P(OffloadStep, ThreadsShareAStoreAndOneGraph) {
  const at::Tensor x = leaf({30, 30});
  const auto forward = [&] { return (x * 2).sin().exp().tanh().matmul(x).sigmoid().sum(); };
  const Tensors plain = gradients_of(forward, {x});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  at::Tensor shared;
  {
    const OffloadScope scope(store_, Bytes(0));
    shared = forward();
  }
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        at::Tensor own;
        {
          const OffloadScope scope(store_, Bytes(0));
          own = forward();
        }
        for (const at::Tensor& loss : {shared, own}) {
          const Tensors gradients = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
          if (!same_bits(gradients, plain)) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  shared.reset();
  EXPECT_EQ(store_->statistics().count, 0);
}

TEST_P(OffloadStep, AFaultAnywhereFailsOneStepAndTheNextOneWorks) {
  const at::Tensor x = leaf({64, 64});
  x.mutable_grad() = torch::zeros({64, 64});
  const auto step = [&] {
    at::Tensor loss;
    {
      const OffloadScope scope(store_, Bytes(0));
      loss = (x * 2).sin().exp().tanh().sum();
    }
    // Or values might come back from memory before they were moved.
    store_->flush();
    loss.backward();
  };
  step();
  const int operations = faults_.operations();
  // Files and transfers; other stores do nothing that could fail here.
  const bool moves = store_->name().find("disk") != std::string::npos ||
                     store_->name().find("host") != std::string::npos;
  ASSERT_EQ(operations > 0, moves) << store_->name();
  if (!moves) GTEST_SKIP() << store_->name() << " moves nothing";
  int tellings = 0;
  for (int n = 0; n < operations; ++n) {
    store_->flush();
    const Bytes before = live_bytes();
    faults_.arm(n);
    try {
      step();
    } catch (const StoreError& error) {
      EXPECT_TRUE(contains(error.what(), "16.4 KB"));
      ++tellings;
    }
    faults_.disarm();
    store_->flush();
    EXPECT_EQ(store_->statistics().count, 0) << n;
    EXPECT_EQ(live_bytes(), before) << n;
    x.mutable_grad().zero_();
    step();
    const at::Tensor gradient = x.grad().clone();
    x.mutable_grad().zero_();
    (x * 2).sin().exp().tanh().sum().backward();
    EXPECT_TRUE(same_bits(gradient, x.grad())) << n;
  }
  EXPECT_GT(tellings, 0);
}

TEST(OffloadMemory, ThePeakOfAStepFallsToAFewTensors) {
  const at::Tensor x = leaf({100'000});
  x.mutable_grad() = torch::zeros({100'000});
  const auto forward = [&] {
    at::Tensor y = x;
    for (int i = 0; i < 30; ++i) y = y.sin();
    return y.sum();
  };
  const auto peak = [&](const std::shared_ptr<Store>& store) {
    const PeakScope scope;
    at::Tensor loss;
    {
      std::optional<OffloadScope> offload;
      if (store != nullptr) offload.emplace(store);
      loss = forward();
    }
    loss.backward();
    return scope.peak_above_start();
  };
  DiskStoreOptions options = small_disk();
  options.in_flight = KiB(800);
  options.read_ahead = KiB(800);
  const auto store = disk_store(options);
  EXPECT_GE(peak(nullptr), Bytes(29 * 400'000));
  // Two that wait or are fetched ahead, and four that the operators of backward work on.
  EXPECT_LE(peak(store), Bytes(6 * 410'000));
}

}  // namespace
}  // namespace reprise
