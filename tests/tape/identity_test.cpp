// Operators may ask whether two arguments are one tensor, or lie on one storage: in a replay the
// answer is what it was at first.
#include <ATen/ops/_native_multi_head_attention.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::does_the_same_when_all_is_dropped;
using testing::paranoid;
using testing::same_bits;
using testing::Tensors;

// Of each two arguments: one tensor, one storage, or neither.
Tensor identities(const Tensor& a, const Tensor& b, at::TensorList list,
                  const c10::List<std::optional<Tensor>>& optional) {
  Tensors all{a, b};
  for (const Tensor& tensor : list) all.push_back(tensor);
  for (std::size_t i = 0; i < optional.size(); ++i) {
    const std::optional<Tensor> tensor = optional.get(i);
    if (tensor) all.push_back(*tensor);
  }
  std::vector<float> answers;
  for (const Tensor& one : all) {
    for (const Tensor& other : all) {
      answers.push_back(one.is_same(other) ? 2 : one.is_alias_of(other) ? 1 : 0);
    }
  }
  return at::tensor(answers, a.options());
}

TORCH_LIBRARY(reprise_identity_test, library) {
  library.def("identities(Tensor a, Tensor b, Tensor[] list, Tensor?[] optional) -> Tensor");
}
TORCH_LIBRARY_IMPL(reprise_identity_test, CPU, library) { library.impl("identities", identities); }

Tensor identities_of(const Tensor& a, const Tensor& b, const Tensors& list,
                     const std::vector<std::optional<Tensor>>& optional) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("reprise_identity_test::identities", "")
                             .typed<Tensor(const Tensor&, const Tensor&, at::TensorList,
                                           const c10::List<std::optional<Tensor>>&)>();
  return op.call(a, b, list, c10::List<std::optional<Tensor>>(optional));
}

TEST(Identity, ArgumentsThatWereOneTensorAreOneAgain) {
  const Tensor x = at::randn({4, 6});
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    const Tensor a = x.sin(), b = x.cos(), part = a.narrow(0, 1, 2), turned = a.t();
    Tensors all{identities_of(a, a, {a, b}, {b, std::nullopt, a}),
                identities_of(a, b, {a, part}, {turned, part}),
                identities_of(b, a, {turned, turned}, {b}),
                identities_of(part, turned, {}, {std::nullopt})};
    // More slots than are compared one by one.
    Tensors many;
    for (int i = 0; i < 24; ++i) many.push_back(i % 5 == 0 ? b : x.exp());
    all.push_back(identities_of(b, many[7], many, {many[7], many[23], a}));
    for (Tensor& each : all) each = each + 1;
    return all;
  }));
}

TEST(Identity, TheSameCallWithOtherIdentitiesIsNotTakenForIt) {
  const Tensor x = at::randn({4, 6});
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    const Tensor a = x.sin(), b = x.cos();
    Tensors all{identities_of(a, a, {b}, {}), identities_of(a, b, {b}, {}),
                identities_of(a, b, {a}, {}), identities_of(a, b, {x}, {}),
                identities_of(b, b, {a}, {})};
    for (Tensor& each : all) each = each * 2;
    return all;
  }));
}

// With one tensor for query, key and value it projects all three at once: other bits.
TEST(Identity, NativeAttentionProjectsAsAtFirst) {
  const at::NoGradGuard no_grad;
  const auto randn = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  const Tensor x = randn({4, 37, 64}), w = randn({192, 64}) * 0.3, b = randn({192});
  const Tensor out = randn({64, 64}) * 0.3, out_b = randn({64});
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    Tensors all{x.sin()};
    for (int i = 0; i < 6; ++i) {
      const Tensor& h = all.back();
      all.push_back(std::get<0>(
          at::_native_multi_head_attention(h, h, h, 64, 4, w, b, out, out_b, {}, false)));
    }
    for (Tensor& each : all) each = each * 2;
    return all;
  }));
}

TEST(Identity, OutOfAnArgumentThatIsReadToo) {
  const Tensor x = at::randn({8, 8});
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    Tensor a = x.sin(), b = x.cos(), c = x.exp();
    const Tensor before = a + 1;
    at::sin_out(a, a);
    at::add_out(b, b, b);
    at::cumsum_out(c, c, 0);
    return Tensors{before * 2, a * 2, b * 2, c * 2, a + b};
  }));
}

}  // namespace
}  // namespace reprise
