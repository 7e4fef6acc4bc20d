// Random models, cut and scheduled at random: gradients are those of the plain loop.
#include <rapidcheck.h>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

using torch::nn::Functional;

// The layers that a random model is made of, each on [samples, 6].
torch::nn::AnyModule random_layer() {
  const auto function = [](auto f) {
    return torch::nn::AnyModule(Functional(std::function<at::Tensor(at::Tensor)>(f)));
  };
  switch (*rc::gen::inRange(0, 12)) {
    case 0:
      return torch::nn::AnyModule(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
    case 1:
      return torch::nn::AnyModule(torch::nn::Dropout(0.4));
    case 2:
      return torch::nn::AnyModule(torch::nn::BatchNorm1d(6));
    case 3:
      return torch::nn::AnyModule(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    case 4:  // a view, changed in place
      return function([](at::Tensor x) {
        return x.view({x.size(0), 2, 3}).tanh().flatten(1).mul_(2);
      });
    case 5:  // a result that is the argument
      return function([](at::Tensor x) { return x; });
    case 6:  // a region inside, which draws
      return function([](const at::Tensor& x) {
        return checkpoint(
            [](const at::Tensor& y) { return torch::dropout(y.sin(), 0.3, true).cos(); }, x);
      });
    case 7:  // changes its argument
      return function([](at::Tensor x) { return x.add_(1); });
    case 8:  // draws by an operator that is given no generator
      return function(
          [](const at::Tensor& x) { return std::get<0>(at::native_dropout(x, 0.3, true)); });
    case 9:
      return function(
          [](const at::Tensor& x) { return x * torch::rand_like(x) + torch::randn({6}); });
    case 10:
      return torch::nn::AnyModule(torch::nn::RReLU());
    default:
      return torch::nn::AnyModule(torch::nn::Linear(6, 6));
  }
}

TEST(PipelineProperty, RandomModelsHaveTheGradientsOfThePlainLoop) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    torch::manual_seed(seed);
    torch::nn::Sequential model;
    const auto layers = *rc::gen::inRange<std::int64_t>(4, 13);
    model->push_back(torch::nn::AnyModule(torch::nn::Linear(6, 6)));
    for (std::int64_t i = 1; i < layers; ++i) model->push_back(random_layer());
    model->push_back(torch::nn::AnyModule(torch::nn::Linear(6, 6)));

    const auto names = schedules::names();
    const std::string name = *rc::gen::elementOf(names);
    const bool is_alone = name == "gpipe" || name == "1f1b";
    const std::int64_t stages = is_alone ? *rc::gen::inRange<std::int64_t>(1, 5) : 4;
    std::vector<std::int64_t> balance(static_cast<std::size_t>(stages), 1);
    for (std::int64_t i = stages; i < layers + 1; ++i) {
      ++balance[*rc::gen::inRange<std::size_t>(0, balance.size())];
    }
    const std::int64_t chunks = *rc::gen::inRange<std::int64_t>(is_alone ? 1 : 2, 4) * 2;
    PipelineOptions options{.balance = balance,
                            .chunks = chunks,
                            .checkpoint_stop = *rc::gen::inRange<std::int64_t>(0, chunks + 1),
                            .schedule = name};
    if (!is_alone) options.devices = {c10::kCPU, c10::kCPU};
    Pipeline pipe(model, options);

    const at::Tensor x = torch::randn({chunks * 3, 6});
    const at::Tensor target = torch::randn({chunks * 3, 6});
    const auto buffers = [&] {
      std::vector<at::Tensor> copies;
      for (const at::Tensor& buffer : model->buffers()) copies.push_back(buffer.clone());
      return copies;
    }();
    const at::Tensor given = x.clone();
    torch::manual_seed(seed + 1);
    Outcome plain;
    try {
      plain = plain_step(model, x, target, chunks, backward_order(pipe.schedule(chunks)));
    } catch (const c10::Error&) {
      RC_DISCARD("a layer changes what the one before it has saved");
    }
    torch::NoGradGuard no_grad;
    x.copy_(given);
    for (std::size_t i = 0; i < buffers.size(); ++i) model->buffers()[i].copy_(buffers[i]);
    torch::AutoGradMode grad(true);
    torch::manual_seed(seed + 1);
    const StepResult result = pipe.step(x, target, square_loss);
    const Outcome outcome = outcome_of(model, result.loss);
    RC_ASSERT(at::equal(plain.loss, outcome.loss));
    for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
      RC_ASSERT(plain.gradients[i].defined() == outcome.gradients[i].defined());
      if (plain.gradients[i].defined()) {
        RC_ASSERT(at::equal(plain.gradients[i], outcome.gradients[i]));
      }
    }
    for (std::size_t i = 0; i < plain.buffers.size(); ++i) {
      RC_ASSERT(at::equal(plain.buffers[i], outcome.buffers[i]));
    }
  }));
}

}  // namespace
}  // namespace reprise::pipeline
