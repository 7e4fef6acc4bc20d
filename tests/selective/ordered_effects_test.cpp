// Operators with ordered effects: a selective region keeps them under every policy but
// kMustRecompute, and runs them once.

#include <ATen/ops/_print.h>
#include <gmock/gmock.h>
#include <reprise/budget.h>
#include <reprise/error.h>
#include <reprise/store.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include "libtorch/operators/operator_facts.h"
#include "tests/selective/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::contains;
using testing::error_of;
using testing::gradients_of;
using testing::leaf;
using testing::OperatorCounts;
using testing::same_bits;
using testing::Tensors;
using testing::with_policy;

struct Counter : torch::CustomClassHolder {
  std::int64_t count = 0;
};

int runs = 0;
Tensor counted_double(const Tensor& x) {
  ++runs;
  return x * 2;
}
Tensor advance(const c10::intrusive_ptr<Counter>& counter, const Tensor& x) {
  ++counter->count;
  return x * 2;
}
void note(const std::string&) { ++runs; }
void send(const Tensor&) { ++runs; }
Tensor& count_into(Tensor& x) {
  ++runs;
  return x.mul_(2);
}
Tensor sensor() {
  ++runs;
  return at::full({4, 4}, 1.5);
}

template <class Signature>
auto op(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("reprise_effects::") + name).c_str(), "")
      .typed<Signature>();
}
bool has_effects(const char* name, const char* overload = "") {
  return libtorch::facts_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload))
      .ordered_effects;
}

class OrderedEffects : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static torch::Library definitions(torch::Library::DEF, "reprise_effects", std::nullopt,
                                      __FILE__, __LINE__);
    definitions.class_<Counter>("Counter").def(torch::init<>());
    definitions.def("double(Tensor x) -> Tensor");
    definitions.def("undeclared(Tensor x) -> Tensor");
    definitions.def(
        "advance(__torch__.torch.classes.reprise_effects.Counter counter, Tensor x) -> Tensor");
    definitions.def("note(str text) -> ()");
    definitions.def("send(Tensor x) -> ()");
    definitions.def("count_(Tensor(a!) x) -> Tensor(a!)");
    definitions.def("sensor() -> Tensor");
    static torch::Library kernels(torch::Library::IMPL, "reprise_effects",
                                  c10::DispatchKey::CompositeExplicitAutograd, __FILE__, __LINE__);
    kernels.impl("double", &counted_double);
    kernels.impl("undeclared", &counted_double);
    kernels.impl("advance", &advance);
    kernels.impl("note", &note);
    kernels.impl("send", &send);
    kernels.impl("count_", &count_into);
    kernels.impl("sensor", &sensor);
    declare_ordered_effects("reprise_effects::double");
    declare_ordered_effects("reprise_effects::sensor");
  }
  void SetUp() override { runs = 0; }

  // How often `f` runs the operators of this file in a step under the policy. Gradients must be the
  // plain ones.
  template <class F>
  int runs_of(const F& f, const OperatorPolicy& policy, EarlyStop stop = EarlyStop::kWhenCheaper) {
    const Tensors plain = gradients_of([&] { return f(x_); }, {x_});
    CheckpointOptions options = with_policy(policy, {.store = memory_store()});
    options.early_stop = stop;
    runs = 0;
    EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options, f, x_); }, {x_}), plain));
    return std::exchange(runs, 0);
  }

  const Tensor x_ = leaf({4, 4}), constant_ = torch::randn({4, 4});
};

OperatorPolicy always(CheckpointPolicy policy) {
  return [policy](const SelectiveCheckpointContext& call) {
    // The effect is what this is about.
    return call.op().starts_with("reprise_effects") ? policy : CheckpointPolicy::kPreferRecompute;
  };
}

TEST_F(OrderedEffects, HappenOnceUnderEveryPolicyButMustRecompute) {
  const auto f = [this](const Tensor& x) {
    return (x.exp() * op<Tensor(const Tensor&)>("double").call(constant_)).sin();
  };
  for (const auto policy : {CheckpointPolicy::kMustSave, CheckpointPolicy::kPreferSave,
                            CheckpointPolicy::kPreferRecompute, CheckpointPolicy::kMustCpuOffload,
                            CheckpointPolicy::kPreferCpuOffload}) {
    EXPECT_EQ(runs_of(f, always(policy)), 1) << static_cast<int>(policy);
  }
  EXPECT_EQ(runs_of(f, always(CheckpointPolicy::kMustRecompute)), 2);
  EXPECT_EQ(runs_of(f, save_matmuls()), 1);
  EXPECT_EQ(runs_of(f, save_largest_cost_per_byte(Bytes(0))), 1);
}

TEST_F(OrderedEffects, OfOperatorsThatNobodyDeclaredHappenAgain) {
  const auto f = [this](const Tensor& x) {
    op<void(const Tensor&)>("send").call(constant_);
    return (x.exp() * op<Tensor(const Tensor&)>("undeclared").call(constant_)).sin();
  };
  EXPECT_EQ(runs_of(f, save_matmuls()), 4);
}

TEST_F(OrderedEffects, AfterTheLastSavedTensorHappenOnceToo) {
  const auto f = [this](const Tensor& x) {
    const Tensor y = x.exp();
    op<void(const std::string&)>("note").call("done");
    op<Tensor(const Tensor&)>("double").call(constant_);
    return y;
  };
  for (const auto stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    EXPECT_EQ(runs_of(f, save_matmuls(), stop), 2);
  }
}

TEST_F(OrderedEffects, AreKnownOfOperatorsThatTakeAnObjectOrNothingAndReturnNothing) {
  EXPECT_TRUE(has_effects("reprise_effects::advance"));
  EXPECT_TRUE(has_effects("reprise_effects::note"));
  EXPECT_TRUE(has_effects("aten::_print"));
  EXPECT_TRUE(has_effects("aten::_linalg_check_errors"));
  for (const char* name : {"reprise_effects::undeclared", "reprise_effects::send",
                           "reprise_effects::count_", "aten::mm", "aten::_assert_async",
                           "quantized::linear", "profiler::_record_function_exit"}) {
    EXPECT_FALSE(has_effects(name)) << name;
  }
  EXPECT_FALSE(has_effects("profiler::_record_function_exit", "_RecordFunction"));
  for (const char* name : {"c10d::barrier", "c10d::send"}) {
    if (c10::Dispatcher::singleton().findSchema({name, ""})) {
      EXPECT_FALSE(has_effects(name)) << name;
    }
  }
}

TEST_F(OrderedEffects, OfAnObjectHappenOnce) {
  const auto counter = c10::make_intrusive<Counter>();
  const auto f = [&](const Tensor& x) {
    const auto call = op<Tensor(const c10::intrusive_ptr<Counter>&, const Tensor&)>("advance");
    return (x.exp() * call.call(counter, constant_)).sin();
  };
  checkpoint(with_policy(save_matmuls()), f, x_).sum().backward();
  EXPECT_EQ(counter->count, 1);
  checkpoint(f, x_).sum().backward();
  EXPECT_EQ(counter->count, 3);
}

TEST_F(OrderedEffects, ALineIsPrintedOnceAndALinalgCheckIsMadeOnce) {
  const auto f = [](const Tensor& x) {
    at::_print("the line");
    return at::linalg_inv(x.exp() + torch::eye(4) * 9).sin();
  };
  OperatorCounts counts;
  ::testing::internal::CaptureStdout();
  checkpoint(with_policy(save_matmuls()), f, x_).sum().backward();
  const std::string printed = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(printed.find("the line"), printed.rfind("the line"));
  EXPECT_NE(printed.find("the line"), std::string::npos);
  EXPECT_EQ(counts["_linalg_check_errors"], 1);
}

TEST_F(OrderedEffects, OfAnOperatorThatMakesNewMemoryHappenOnce) {
  const auto f = [](const Tensor& x) {
    return (x.exp() * op<Tensor()>("sensor").call().add_(1)).sin();
  };
  EXPECT_EQ(runs_of(f, save_matmuls()), 1);
}

TEST_F(OrderedEffects, AResultThatIsChangedAtOnceIsKeptWithTheChange) {
  const auto f = [this](const Tensor& x) {
    return (x.exp() * op<Tensor(const Tensor&)>("double").call(constant_).add_(1)).sin();
  };
  EXPECT_EQ(runs_of(f, save_matmuls()), 1);
}

TEST_F(OrderedEffects, AResultThatIsChangedLaterIsAnErrorThatSaysWhy) {
  const auto f = [this](const Tensor& x) {
    const Tensor kept = op<Tensor(const Tensor&)>("double").call(constant_);
    const Tensor read = kept.sum();
    return (x.exp() * kept.mul_(2)).sin() * read;
  };
  const Tensor y = checkpoint(with_policy(save_matmuls()), f, x_).sum();
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { y.backward(); }),
                       "reprise_effects::double has been mutated: it was changed in place after "
                       "the operator returned it. Its ordered effects must not happen again: "
                       "change a copy of the result, or answer kMustRecompute"));
}

TEST_F(OrderedEffects, WithoutTensorsAllowAnyNumberOfBackwardCalls) {
  const auto f = [](const Tensor& x) {
    op<void(const std::string&)>("note").call("begun");
    return x.exp().sin();
  };
  const Tensors plain = gradients_of([&] { return f(x_); }, {x_});
  runs = 0;
  const Tensor y = checkpoint(with_policy({"mm"}), f, x_).sum();
  for (int run = 0; run < 3; ++run) {
    y.backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(same_bits(testing::take_gradients({x_}), plain));
  }
  EXPECT_EQ(runs, 1);
}

// Runs `double` on a constant inside, and may write to memory outside.
struct Calls : torch::autograd::Function<Calls> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x, const Tensor& constant,
                        const Tensor& count, bool counts) {
    if (counts) Tensor(count).add_(1);
    return x * op<Tensor(const Tensor&)>("double").call(constant);
  }
  static Tensors backward(torch::autograd::AutogradContext*, Tensors gradients) {
    return {2 * gradients[0], Tensor(), Tensor(), Tensor()};
  }
};

TEST_F(OrderedEffects, InsideACustomFunctionHappenOnceWhetherItIsKeptOrRunsAgain) {
  const Tensor ones = torch::ones({4, 4}), count = torch::zeros({});
  const auto f = [&](const Tensor& x) {
    return reprise::apply<Calls>(x.exp(), ones, count, false).sin() *
           op<Tensor(const Tensor&)>("double").call(constant_);
  };
  EXPECT_EQ(runs_of(f, save_matmuls()), 2);
  EXPECT_EQ(runs_of(f, {function_name<Calls>()}), 2);
  EXPECT_EQ(
      runs_of(f,
              [](const SelectiveCheckpointContext&) { return CheckpointPolicy::kMustRecompute; }),
      4);
}

TEST_F(OrderedEffects, InAKeptFunctionThatMustRunAgainAreRefused) {
  const Tensor ones = torch::ones({4, 4}), count = torch::zeros({});
  const auto f = [&](const Tensor& x) {
    return reprise::apply<Calls>(x.exp(), ones, count, true).sin();
  };
  const auto prefers = with_policy([](const SelectiveCheckpointContext& call) {
    return call.is(function_name<Calls>()) ? CheckpointPolicy::kPreferSave
                                           : CheckpointPolicy::kPreferRecompute;
  });
  EXPECT_TRUE(contains(error_of<UsageError>([&] { checkpoint(prefers, f, x_); }),
                       "Calls, which writes to memory that it did not make and must run again"));
  EXPECT_EQ(runs_of(f, save_matmuls()), 1);
}

TEST_F(OrderedEffects, OfOperatorsThatWriteHappenAgainAndCannotBeDeclared) {
  const auto f = [](const Tensor& x) {
    Tensor y = x.exp();
    {
      const torch::NoGradGuard no_grad;
      Tensor factor = torch::ones({4, 4});
      op<Tensor&(Tensor&)>("count_").call(factor);
      y = y.clone();
    }
    return x.exp().sin() + y.sum();
  };
  EXPECT_EQ(runs_of(f, save_matmuls()), 2);
  EXPECT_TRUE(
      contains(error_of<UsageError>([] { declare_ordered_effects("reprise_effects::count_"); }),
               "reprise_effects::count_ writes to an argument or returns a view of one"));
  EXPECT_TRUE(contains(error_of<UsageError>([] { declare_ordered_effects("reprise_effects::no"); }),
                       "reprise_effects::no is no operator that LibTorch knows; load the library"));
}

TEST_F(OrderedEffects, ADeclarationOverrulesTheSchema) {
  const auto f = [](const Tensor& x) {
    op<void(const std::string&)>("note").call("begun");
    return x.exp().sin();
  };
  declare_ordered_effects("reprise_effects::note", false);
  EXPECT_EQ(runs_of(f, save_matmuls()), 2);
  declare_ordered_effects("reprise_effects::note");
  EXPECT_EQ(runs_of(f, save_matmuls()), 1);
}

TEST_F(OrderedEffects, AreNotReplayedByABudget) {
  if (libtorch::operator_interceptor_variant() == "generic") {
    GTEST_SKIP() << "a byte budget refuses the generic interceptor";
  }
  const auto runs_in_a_step = [this](const char* name) {
    MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1), .paranoid = true});
    const auto step = budget.step();
    runs = 0;
    const Tensor y = x_.exp();
    (y * op<Tensor(const Tensor&)>(name).call(y.detach())).sin().sum().backward();
    return runs;
  };
  EXPECT_GT(runs_in_a_step("undeclared"), 1);
  EXPECT_EQ(runs_in_a_step("double"), 1);
}

}  // namespace
}  // namespace reprise
