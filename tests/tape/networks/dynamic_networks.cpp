// Networks whose graph depends on the data, on the step, or on the step before.
#include <random>

#include "tests/tape/networks/networks.h"

namespace reprise::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

// A language model over a long text, cut into steps: each begins with the last one's state.
struct Lstm final : Network {
  nn::Embedding words{32, 16};
  nn::LSTM lstm{nn::LSTMOptions(16, 24).num_layers(2).dropout(0.1)};
  nn::Linear head{24, 32};
  std::vector<Tensor> tokens = batches_of([] { return at::randint(32, {13, 8}); });
  std::tuple<Tensor, Tensor> state{at::zeros({2, 8, 24}), at::zeros({2, 8, 24})};

  Lstm() {
    register_module("words", words);
    register_module("lstm", lstm);
    register_module("head", head);
  }
  Tensor loss(int step) override {
    const Tensor& batch = batch_of(tokens, step);
    const auto [y, after] = lstm->forward(words->forward(batch.narrow(0, 0, 12)), state);
    state = {std::get<0>(after).detach(), std::get<1>(after).detach()};
    return at::cross_entropy_loss(head->forward(y).flatten(0, 1), batch.narrow(0, 1, 12).flatten());
  }
};

// Another tree in each step, composed from its leaves up.
struct Tree final : Network {
  nn::Embedding words{20, 32};
  nn::Linear gate{64, 32}, update{64, 32}, head{32, 3};

  Tree() {
    register_module("words", words);
    register_module("gate", gate);
    register_module("update", update);
    register_module("head", head);
  }
  Tensor compose(std::mt19937& random, int depth) {
    if (depth == 0 || random() % 5 == 0) {
      return words->forward(at::full({24}, static_cast<std::int64_t>(random() % 20), at::kLong));
    }
    const Tensor left = compose(random, depth - 1);
    const Tensor right = compose(random, depth - 1);
    const Tensor both = at::cat({left, right}, 1);
    const Tensor open = gate->forward(both).sigmoid_();
    return open * at::tanh(update->forward(both)) + (1 - open) * (left + right) / 2;
  }
  Tensor loss(int step) override {
    std::mt19937 random(static_cast<unsigned>(step));
    const Tensor logits = head->forward(compose(random, 4));
    return at::cross_entropy_loss(logits, at::full({24}, step % 3, at::kLong));
  }
};

// Each row goes to the two experts that the router chooses for it; some may get none.
struct Experts final : Network {
  nn::Linear router{32, 4}, head{32, 10};
  nn::ModuleList experts;
  std::vector<Tensor> x = batches_of([] { return at::randn({64, 32}); });
  std::vector<Tensor> y = batches_of([] { return at::randint(10, {64}); });

  Experts() {
    for (int i = 0; i < 4; ++i) {
      experts->push_back(
          nn::Sequential(nn::Linear(32, 64), nn::SiLU(), nn::Dropout(0.1), nn::Linear(64, 32)));
    }
    register_module("router", router);
    register_module("head", head);
    register_module("experts", experts);
  }
  Tensor mix(const Tensor& rows) {
    const auto [weights, chosen] = router->forward(rows).softmax(1).topk(2, 1);
    const Tensor shares = weights / weights.sum(1, true);
    Tensor mixed = at::zeros_like(rows);
    for (std::int64_t i = 0; i < 4; ++i) {
      const Tensor places = (chosen == i).nonzero();
      if (places.size(0) == 0) continue;
      const Tensor row = places.select(1, 0);
      const Tensor share = shares.index({row, places.select(1, 1)}).unsqueeze(1);
      const Tensor out = experts[static_cast<std::size_t>(i)]->as<nn::Sequential>()->forward(
          rows.index_select(0, row));
      mixed.index_add_(0, row, (out * share).to(mixed.scalar_type()));
    }
    return rows + mixed;
  }
  Tensor loss(int step) override {
    return at::cross_entropy_loss(head->forward(mix(mix(batch_of(x, step))).tanh()),
                                  batch_of(y, step));
  }
};

}  // namespace

std::vector<NetworkKind> dynamic_networks() {
  return {{"Lstm", make_network<Lstm>},
          {"Tree", make_network<Tree>},
          {"MixtureOfExperts", make_network<Experts>, /*reads_values=*/true}};
}

}  // namespace reprise::testing
