// Tensors that were lent to meta come back as they were.
#include "libtorch/meta/lent_to_meta.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "libtorch/meta/shape_functions.h"
#include "tests/refusal.h"

namespace reprise::libtorch {
namespace {

// All of a tensor that must not change.
struct Look {
  explicit Look(const at::Tensor& x)
      : impl(x.unsafeGetTensorImpl()),
        storage(x.storage().unsafeGetStorageImpl()),
        sizes(x.sizes().vec()),
        strides(x.strides().vec()),
        offset(x.storage_offset()),
        version(x._version()),
        device(x.device()),
        dtype(x.scalar_type()),
        requires_grad(x.requires_grad()),
        keys(x.key_set()),
        grad(x.grad().defined() ? x.grad().unsafeGetTensorImpl() : nullptr) {}
  bool operator==(const Look&) const = default;

  const void* impl;
  const void* storage;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset;
  std::int64_t version;
  at::Device device;
  at::ScalarType dtype;
  bool requires_grad;
  c10::DispatchKeySet keys;
  const void* grad;
};

std::vector<at::Tensor> tensors_of_every_kind() {
  const auto base = torch::rand({4, 6});
  auto trained = torch::rand({3, 2}, torch::requires_grad());
  (trained * 2).sum().backward();
  const auto changed = torch::rand({5});
  changed.add_(1);
  return {torch::rand({2, 3}),
          torch::rand({2, 3}).to(torch::kBFloat16),
          base.t(),
          base.select(0, 1),
          torch::rand({0, 4}),
          torch::rand({}),
          torch::empty({3}, torch::kMeta),
          torch::randint(9, {4}),
          trained,
          changed,
          torch::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
          at::Tensor()};
}

TEST(LentToMeta, GivesEveryKindBack) {
  const std::vector<at::Tensor> tensors = tensors_of_every_kind();
  std::vector<Look> before;
  std::vector<at::Tensor> values;
  for (const at::Tensor& x : tensors) {
    if (!x.defined()) continue;
    before.emplace_back(x);
    values.push_back(x.detach().clone());
  }
  {
    const LentToMeta lent(tensors);
    std::size_t i = 0;
    for (const at::Tensor& x : tensors) {
      if (!x.defined()) continue;
      const Look& was = before[i++];
      EXPECT_TRUE(x.is_meta());
      EXPECT_EQ(x.sizes(), was.sizes);
      EXPECT_EQ(x.strides(), was.strides);
      EXPECT_EQ(x.scalar_type(), was.dtype);
      EXPECT_EQ(x.requires_grad(), was.requires_grad);
      EXPECT_FALSE(x.grad().defined());
      EXPECT_EQ(x.unsafeGetTensorImpl(), was.impl);
      const torch::NoGradGuard no_grad;
      x.zero_();
    }
  }
  std::size_t i = 0;
  for (const at::Tensor& x : tensors) {
    if (!x.defined()) continue;
    EXPECT_TRUE(Look(x) == before[i]) << i;
    if (!x.is_meta()) {
      EXPECT_TRUE(torch::equal(x.detach(), values[i])) << i;
    }
    ++i;
  }
}

TEST(LentToMeta, SharedMemoryIsSharedThere) {
  const auto flat = torch::rand({10});
  const auto left = flat.narrow(0, 0, 4), right = flat.narrow(0, 4, 6), alone = torch::rand({4});
  {
    const LentToMeta lent({left, right, alone, left});
    EXPECT_TRUE(left.is_alias_of(right));
    EXPECT_FALSE(left.is_alias_of(alone));
    EXPECT_EQ(right.storage_offset(), 4);
    EXPECT_EQ(left.storage().nbytes(), flat.storage().nbytes());
    EXPECT_FALSE(flat.is_meta());
  }
  EXPECT_TRUE(left.is_alias_of(flat));
  EXPECT_TRUE(right.is_alias_of(left));
}

TEST(LentToMeta, TrainingGoesOnBitwise) {
  ensure_shape_functions();
  torch::manual_seed(1);
  torch::nn::Sequential lent_net(torch::nn::Linear(4, 8), torch::nn::ReLU(),
                                 torch::nn::Linear(8, 1));
  const auto x = torch::rand({3, 4});
  const auto gradients = [&] {
    std::vector<at::Tensor> made;
    lent_net->zero_grad();
    lent_net->forward(x).sum().backward();
    for (const auto& p : lent_net->parameters()) made.push_back(p.grad().clone());
    return made;
  };
  const auto before = gradients();
  const auto kept = lent_net->forward(x);  // a graph that lives on, with its accumulators
  std::vector<const void*> nodes;
  {
    const LentToMeta lent(lent_net->parameters());
    auto loss = lent_net->forward(torch::empty({3, 4}, torch::kMeta)).sum();
    loss.backward();
    for (const auto& p : lent_net->parameters()) {
      EXPECT_TRUE(p.grad().is_meta());
      const torch::NoGradGuard no_grad;
      p.sub_(p.grad());
    }
  }
  lent_net->zero_grad();
  kept.sum().backward();
  const auto params = lent_net->parameters();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(params[i].grad(), before[i]));
  }
  const auto after = gradients();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(after[i], before[i]));
}

TEST(LentToMeta, ARefusalLeavesAllAsItWas) {
  const auto first = torch::rand({2, 3}), last = torch::rand({3});
  const auto sparse = torch::eye(3).to_sparse();
  const Look before(first);
  const std::string text = refusal_of([&] { const LentToMeta lent({first, sparse, last}); });
  EXPECT_NE(text.find("[3, 3]"), std::string::npos) << text;
  EXPECT_NE(text.find("make it dense"), std::string::npos) << text;
  EXPECT_TRUE(Look(first) == before);
  EXPECT_FALSE(last.is_meta());
}

TEST(LentToMeta, Nests) {
  const auto x = torch::rand({2, 3}, torch::requires_grad());
  const Look before(x);
  {
    const LentToMeta outer({x});
    const Look between(x);
    {
      const LentToMeta inner({x});
      EXPECT_TRUE(x.is_meta());
    }
    EXPECT_TRUE(Look(x) == between);
  }
  EXPECT_TRUE(Look(x) == before);
}

TEST(LentToMeta, ComesBackWhenAStepThrows) {
  const auto x = torch::rand({2, 3}, torch::requires_grad());
  const Look before(x);
  EXPECT_THROW(
      {
        const LentToMeta lent({x});
        (x * 2).sum().backward();
        throw std::runtime_error("mid-step");
      },
      std::runtime_error);
  EXPECT_TRUE(Look(x) == before);
}

}  // namespace
}  // namespace reprise::libtorch
