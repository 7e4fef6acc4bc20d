// What a region can be given and can return: tensors anywhere in containers and user types,
// anything that is not a tensor, move-only things, nothing at all, and modules of every kind.
#include "tests/region/testing.h"

#include <reprise/saved_tensor_hooks.h>
#include <torch/script.h>

#include <array>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <variant>

namespace user {

struct Batch {
  at::Tensor tokens;
  std::vector<at::Tensor> masks;
  int step = 0;
};

template <class F>
void reprise_visit_tensors(Batch& batch, F&& f) {
  reprise::visit_tensors(batch.tokens, f);
  reprise::visit_tensors(batch.masks, f);
}

}  // namespace user

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::AnyModule;
using torch::nn::Linear;
using torch::nn::Sequential;

class CheckpointArguments : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(4); }
  // Gradients of `f(args...)` as a region equal those of the plain call.
  template <class F, class... Args>
  ::testing::AssertionResult same_as_plain(F&& f, const Args&... args) {
    const auto total = [](auto result) {
      at::Tensor sum = torch::zeros({});
      visit_tensors(result, [&](at::Tensor& t) { sum = sum + t.sum(); });
      return sum;
    };
    const Tensors expected = gradients_of([&] { return total(f(args...)); }, {x_, y_});
    return same_bits(
        gradients_of([&] { return total(checkpoint(options_, f, args...)); }, {x_, y_}), expected);
  }
  CheckpointOptions options_ = options_of(GetParam());
  at::Tensor x_ = leaf({4, 4}), y_ = leaf({4, 4});
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointArguments,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(CheckpointArguments, OptionalTensorsMayBeAbsentOrPresent) {
  const auto f = [](const at::Tensor& a, const std::optional<at::Tensor>& b) {
    return b ? a.exp() * *b : a.exp();
  };
  EXPECT_TRUE(same_as_plain(f, x_, std::optional<at::Tensor>()));
  EXPECT_TRUE(same_as_plain(f, x_, std::optional<at::Tensor>(y_)));
}

TEST_P(CheckpointArguments, UndefinedTensorsPassThrough) {
  const auto f = [](const at::Tensor& a, const at::Tensor& none) {
    EXPECT_FALSE(none.defined());
    return std::tuple(a.exp(), none);
  };
  const auto [a, none] = checkpoint(options_, f, x_, at::Tensor());
  EXPECT_FALSE(none.defined());
  a.sum().backward();
  EXPECT_TRUE(same_bits(take_gradients({x_}), {x_.exp().detach()}));
}

TEST_P(CheckpointArguments, ResultsThatAreNoTensorsKeepTheirPlace) {
  const auto f = [](const at::Tensor& t1, const at::Tensor& t2, int scale, const at::Tensor& t3) {
    at::Tensor t4 = t1 + t2 * t3;
    at::Tensor t5 = t1 * t2 + t3;
    t4 *= scale;
    t5 *= scale;
    return std::tuple(scale, t4, std::optional<at::Tensor>(), true, t5, std::string("bar"), t1);
  };
  const at::Tensor t3 = torch::rand({4, 4});
  const auto expected = f(x_, y_, 7, t3);
  std::tuple_element_t<4, std::remove_cv_t<decltype(expected)>> once_more;
  {
    const auto result = checkpoint(options_, f, x_, y_, 7, t3);
    EXPECT_EQ(std::get<0>(result), 7);
    EXPECT_TRUE(same_bits(std::get<1>(result), std::get<1>(expected)));
    EXPECT_FALSE(std::get<2>(result).has_value());
    EXPECT_TRUE(std::get<3>(result));
    EXPECT_TRUE(same_bits(std::get<4>(result), std::get<4>(expected)));
    EXPECT_EQ(std::get<5>(result), "bar");
    EXPECT_TRUE(same_bits(std::get<6>(result), x_));
    std::get<1>(result).sum().backward({}, /*retain_graph=*/true);
    std::get<6>(result).sum().backward({}, /*retain_graph=*/true);
    std::get<4>(result).sum().backward();
    once_more = std::get<4>(result);
  }
  EXPECT_TRUE(contains(error_of<c10::Error>([&] { once_more.sum().backward(); }),
                       "Trying to backward through the graph a second time"));
  // Three backward calls add up in another order than one.
  const Tensors actual = take_gradients({x_, y_});
  const Tensors plain = gradients_of(
      [&] {
        return std::get<1>(expected).sum() + std::get<6>(expected).sum() +
               std::get<4>(expected).sum();
      },
      {x_, y_});
  EXPECT_TRUE(torch::allclose(actual[0], plain[0]));
  EXPECT_TRUE(torch::allclose(actual[1], plain[1]));
}

TEST_P(CheckpointArguments, NoTensorAtAllPassesThrough) {
  const auto f = [](double a, double b, int scale) {
    return std::tuple(scale, (a + b) * scale, true, std::string("bar"));
  };
  EXPECT_EQ(checkpoint(options_, f, 1.5, 2.25, 3), f(1.5, 2.25, 3));
}

TEST_P(CheckpointArguments, ContainersOfTensorsTakePartInAutograd) {
  const auto sum_of_exps = [](auto container) {
    at::Tensor sum = torch::zeros({4, 4});
    visit_tensors(container, [&](at::Tensor& t) { sum = sum + t.exp() * sum.sin(); });
    return sum + 1;
  };
  const auto check = [&](const auto& container) {
    EXPECT_TRUE(same_as_plain([&](const auto& c) { return sum_of_exps(c); }, container));
  };
  check(std::vector{x_, y_});
  check(std::array{x_, y_});
  check(std::deque{x_, y_});
  check(std::list{x_, y_});
  check(std::pair(x_, y_));
  check(std::tuple(3, x_, std::string("s"), y_));
  check(std::map<std::string, at::Tensor>{{"a", x_}, {"b", y_}});
  check(std::unordered_map<int, at::Tensor>{{1, x_}});
  check(std::variant<int, at::Tensor>(y_));
  check(std::vector<std::map<int, std::pair<bool, std::optional<at::Tensor>>>>{
      {{1, {true, x_}}, {2, {false, std::nullopt}}}, {{1, {true, y_}}}});
}

TEST_P(CheckpointArguments, DictionariesGoInAndComeOut) {
  using Dictionary = std::map<std::string, at::Tensor>;
  Linear layer(torch::nn::LinearOptions(4, 4).bias(false));
  const auto f = [&](const Dictionary& in) {
    return Dictionary{{"result", layer->forward(in.at("tensor"))}};
  };
  const auto run = [&](auto&& call) {
    return gradients_of(
        [&] {
          return call(f, Dictionary{{"tensor", x_}}).at("result");
        },
        {x_, layer->weight});
  };
  EXPECT_TRUE(
      same_bits(run([&](auto&& g, const Dictionary& in) { return checkpoint(options_, g, in); }),
                run([&](auto&& g, const Dictionary& in) { return g(in); })));
}

TEST_P(CheckpointArguments, AUserTypeIsOpenedByItsOwnVisitFunction) {
  static_assert(holds_tensors<user::Batch>);
  const auto f = [](const user::Batch& batch) {
    return user::Batch{
        (batch.tokens * batch.masks[0]).exp() * batch.step, {batch.masks[0].sin()}, 3};
  };
  const user::Batch batch{x_, {y_}, 2};
  EXPECT_TRUE(same_as_plain(f, batch));
  EXPECT_EQ(checkpoint(options_, f, batch).step, 3);
}

TEST_P(CheckpointArguments, EveryTensorOfAUserTypeIsSavedThroughAutograd) {
  user::Batch batch{x_ * 2, {y_ * 2}, 1};
  const StorageWatch tokens(batch.tokens), mask(batch.masks[0]);
  at::Tensor result;
  {
    const SavedTensorHooksScope copies([](const at::Tensor& t) { return t.clone(); },
                                       [](const at::Tensor& t) { return t; });
    result = checkpoint(
        options_, [](const user::Batch& b) { return (b.tokens * b.masks[0]).exp(); },
        std::move(batch));
  }
  EXPECT_FALSE(tokens.alive());
  EXPECT_FALSE(mask.alive());
  result.sum().backward();
  const Tensors actual = take_gradients({x_, y_});
  EXPECT_TRUE(
      same_bits(actual, gradients_of([&] { return ((x_ * 2) * (y_ * 2)).exp(); }, {x_, y_})));
}

TEST_P(CheckpointArguments, OneTensorMayBeGivenTwice) {
  EXPECT_TRUE(
      same_as_plain([](const at::Tensor& a, const at::Tensor& b) { return a.exp() * b; }, x_, x_));
}

TEST_P(CheckpointArguments, ViewsAndOddShapesKeepTheirStridesAndGradients) {
  const auto f = [](const at::Tensor& t) { return t.exp().sin(); };
  const auto with = [&](auto&& view) {
    EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options_, f, view(x_)); }, {x_}),
                          gradients_of([&] { return f(view(x_)); }, {x_})));
  };
  with([](const at::Tensor& t) { return t.t(); });
  with([](const at::Tensor& t) { return t.select(1, 2); });
  with([](const at::Tensor& t) { return t.narrow(0, 1, 2).narrow(1, 0, 3); });
  with([](const at::Tensor& t) { return t.unsqueeze(0).expand({3, 4, 4}); });
  with([](const at::Tensor& t) { return t.narrow(0, 0, 0); });
  with([](const at::Tensor& t) { return t.mean(); });
  const at::Tensor indices = torch::tensor({3, 0, 0});
  EXPECT_TRUE(same_as_plain(
      [](const at::Tensor& t, const at::Tensor& i) { return t.index_select(0, i).exp(); }, x_,
      indices));
}

TEST_P(CheckpointArguments, FunctionsAndArgumentsMayBeMoveOnlyAndMutable) {
  auto in_closure = std::make_unique<double>(2.0);
  const at::Tensor result = checkpoint(
      options_,
      [factor = std::move(in_closure), calls = 0](const at::Tensor& t,
                                                  const std::unique_ptr<double>& other) mutable {
        EXPECT_GE(++calls, 1);
        return (t * *factor).exp() * *other;
      },
      x_, std::make_unique<double>(3.0));
  result.sum().backward();
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return (x_ * 2.0).exp() * 3.0; }, {x_})));
}

TEST_P(CheckpointArguments, ResultsMayBeMoveOnly) {
  auto [y, note] = checkpoint(
      options_,
      [](const at::Tensor& t) { return std::pair(t.exp(), std::make_unique<std::string>("note")); },
      x_);
  EXPECT_EQ(*note, "note");
  y.sum().backward();
  EXPECT_TRUE(same_bits(take_gradients({x_}), {x_.exp().detach()}));
}

TEST_P(CheckpointArguments, AReferenceWrapperPassesAReference) {
  std::vector<double> log;
  checkpoint(
      options_,
      [](const at::Tensor& t, std::vector<double>& values) {
        values.push_back(t.sum().item<double>());
        return t.exp();
      },
      x_, std::ref(log))
      .sum()
      .backward();
  EXPECT_EQ(log, std::vector<double>(2, x_.sum().item<double>()));
}

TEST_P(CheckpointArguments, EveryKindOfModuleIsAFunction) {
  Sequential sequential(Linear(4, 8), torch::nn::Tanh(), Linear(8, 4));
  Linear linear(4, 4);
  AnyModule any(Linear(4, 4));
  auto shared = std::make_shared<torch::nn::LinearImpl>(4, 4);
  torch::nn::LinearImpl object(4, 4);
  const auto with = [&](auto& module, auto&& plain, Tensors leaves) {
    leaves.push_back(x_);
    EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options_, module, x_); }, leaves),
                          gradients_of(plain, leaves)));
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(same_bits(checkpoint(options_, module, x_), plain()));
  };
  with(
      sequential, [&] { return sequential->forward(x_); }, sequential->parameters());
  with(
      linear, [&] { return linear->forward(x_); }, linear->parameters());
  with(
      any, [&] { return any.forward(x_); }, any.ptr()->parameters());
  with(
      shared, [&] { return shared->forward(x_); }, shared->parameters());
  with(
      object, [&] { return object.forward(x_); }, object.parameters());
}

TEST_P(CheckpointArguments, AFunctionPointerIsAFunction) {
  at::Tensor (*const function)(const at::Tensor&) = [](const at::Tensor& t) { return t.exp(); };
  EXPECT_TRUE(same_as_plain(function, x_));
}

TEST_P(CheckpointArguments, AScriptModuleIsAFunctionOverIValues) {
  torch::jit::Module module("net");
  module.register_parameter("weight", torch::rand({4, 4}).requires_grad_(true),
                            /*is_buffer=*/false);
  module.define(R"(
    def forward(self, x):
      y = torch.tanh(torch.mm(x, self.weight))
      return y * torch.sigmoid(y) + torch.exp(x)
  )");
  const at::Tensor weight = module.attr("weight").toTensor();
  const auto plain = [&] {
    const detail::PlainScriptExecutor executor;
    return module.forward({x_}).toTensor();
  };
  const Tensors expected = gradients_of(plain, {x_, weight});
  for (int i = 0; i < 4; ++i) {  // TorchScript compiles and specialises during its first runs
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint(options_, module, x_).toTensor(); }, {x_, weight}),
        expected))
        << "run " << i;
  }
}

TEST(CheckpointArgumentsNonReentrant, AVoidFunctionLeavesItsResultsWhereItPutsThem) {
  const at::Tensor x = leaf();
  at::Tensor out;
  const auto f = [&](const at::Tensor& t) {
    const at::Tensor y = t.exp().sin();
    if (!is_recomputing()) out = y;
  };
  static_assert(std::is_void_v<decltype(checkpoint(f, x))>);
  checkpoint(f, x);
  out.sum().backward();
  const Tensors actual = take_gradients({x});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x.exp().sin(); }, {x})));
}

TEST(CheckpointArgumentsNonReentrant, AResultInAnOpaqueMoveOnlyObjectIsPassedThrough) {
  const at::Tensor x = leaf();
  auto y = checkpoint([](const at::Tensor& t) { return std::make_unique<at::Tensor>(t.exp()); }, x);
  y->sum().backward();
  EXPECT_TRUE(same_bits(take_gradients({x}), {x.exp().detach()}));
}

TEST(CheckpointArgumentsNonReentrant, AFunctionWithoutArgumentsMayUseWhatItCaptures) {
  const at::Tensor x = leaf();
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint([x] { return x.sin().exp(); }); }, {x}),
                gradients_of([&] { return x.sin().exp(); }, {x})));
}

TEST(CheckpointArgumentsNonReentrant, NestedNonTensorArgumentsAndFunctionsAsArguments) {
  const at::Tensor a = leaf({}), b = leaf({});
  const auto fn = [](int k, const at::Tensor& s, const at::Tensor& t, const auto& f) {
    return std::tuple(f(k * s * t.exp()), 1, std::string("abcd"));
  };
  const auto sine = [](const at::Tensor& t) { return t.sin(); };
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    const auto [out, one, letters] = checkpoint(with_early_stop(stop), fn, 3, a, b, sine);
    EXPECT_EQ(one, 1);
    EXPECT_EQ(letters, "abcd");
    EXPECT_TRUE(same_bits(torch::autograd::grad({out}, {a, b}),
                          torch::autograd::grad({std::get<0>(fn(3, a, b, sine))}, {a, b})));
  }
}

TEST(CheckpointArgumentsNonReentrant, AnOptionalSecondTensorGetsItsGradient) {
  const at::Tensor a = leaf({}), b = leaf({});
  const auto fn = [](const at::Tensor& t, const std::optional<at::Tensor>& factor) {
    at::Tensor out = t.sin().exp();
    if (factor) out = out * *factor;
    return out.sin().exp();
  };
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    EXPECT_TRUE(same_bits(
        torch::autograd::grad({checkpoint(with_early_stop(stop), fn, a, std::optional(b))}, {a, b}),
        torch::autograd::grad({fn(a, b)}, {a, b})));
  }
}

}  // namespace
}  // namespace reprise
