// Calls share a form where nothing but the memory differs, and only there.

#include "libtorch/operators/recorded_call.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tests/region/ambient_settings.h"

namespace reprise::libtorch {
namespace {

// The forms of the calls that `f` makes, one for each operator that is no view.
class Forms final : public OperatorInterceptor {
 public:
  explicit Forms(CallForms& forms) : forms_(forms) {}
  void intercept(OperatorCall& call) override {
    const CallForms::Found found = forms_.find(call, c10::kCPU);
    seen.push_back(found.form != nullptr ? found.form : &forms_.add(call, found));
  }
  std::vector<CallForm*> seen;

 private:
  CallForms& forms_;
};

CallForm* form_of(CallForms& forms, const std::function<void()>& f) {
  const auto interceptor = std::make_shared<Forms>(forms);
  {
    const OperatorInterceptorScope scope(interceptor);
    f();
  }
  EXPECT_EQ(interceptor->seen.size(), 1u);
  return interceptor->seen.front();
}

class CallFormsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (operator_interceptor_variant() != "fake") GTEST_SKIP() << "forms are taken below autograd";
  }
  bool share(const std::function<void()>& one, const std::function<void()>& other) {
    CallForms forms;
    return form_of(forms, one) == form_of(forms, other);
  }
  at::Tensor x = torch::rand({4, 6});
  at::Tensor y = torch::rand({4, 6});
};

TEST_F(CallFormsTest, OtherMemoryIsTheSameForm) {
  EXPECT_TRUE(share([&] { x.add(y); }, [&] { y.add(x); }));
  EXPECT_TRUE(share([&] { torch::cat({x, y}); }, [&] { torch::cat({y, x}); }));
  EXPECT_TRUE(share([&] { x.sum({0}); }, [&] { y.sum({0}); }));
  EXPECT_TRUE(share([&] { torch::gelu(x, "tanh"); }, [&] { torch::gelu(y, "tanh"); }));
}

TEST_F(CallFormsTest, WhateverElseDiffersIsAnotherForm) {
  const at::Tensor square = torch::rand({6, 6});
  const at::Tensor turned = square.t();
  const at::Tensor part = torch::rand({8, 6}).slice(0, 4, 8);
  const at::Tensor doubles = torch::rand({4, 6}, torch::kDouble);
  EXPECT_FALSE(share([&] { x.add(y); }, [&] { x.mul(y); }));
  EXPECT_FALSE(share([&] { x.add(y); }, [&] { x.add(y, 2); }));
  EXPECT_FALSE(share([&] { x.exp(); }, [&] { square.exp(); }));
  EXPECT_FALSE(share([&] { square.exp(); }, [&] { turned.exp(); }));
  EXPECT_FALSE(share([&] { x.exp(); }, [&] { part.exp(); }));
  EXPECT_FALSE(share([&] { x.exp(); }, [&] { doubles.exp(); }));
  EXPECT_FALSE(share([&] { x.sum({0}); }, [&] { x.sum({1}); }));
  EXPECT_FALSE(share([&] { torch::cat({x, y}); }, [&] { torch::cat({x, y, x}); }));
  EXPECT_FALSE(share([&] { torch::gelu(x, "tanh"); }, [&] { torch::gelu(x, "none"); }));
  EXPECT_FALSE(share([&] { x.add(0.0); }, [&] { x.add(-0.0); }));
  EXPECT_FALSE(share([&] { x.add(1); }, [&] { x.add(1.0); }));
  EXPECT_FALSE(share([&] { x.clamp(0); }, [&] { x.clamp(c10::nullopt, 0); }));
  EXPECT_FALSE(share([&] { x.exp(); },
                     [&] {
                       const torch::NoGradGuard without;
                       x.exp();
                     }));
}

TEST_F(CallFormsTest, ArgumentsThatAreOneTensorAreAnotherForm) {
  const at::Tensor z = torch::rand({4, 6});
  EXPECT_FALSE(share([&] { x.add(x); }, [&] { x.add(y); }));
  EXPECT_TRUE(share([&] { x.add(x); }, [&] { y.add(y); }));
  EXPECT_FALSE(share([&] { torch::cat({x, y, x}); }, [&] { torch::cat({x, y, y}); }));
  EXPECT_FALSE(share([&] { torch::cat({x, y, x}); }, [&] { torch::cat({x, y, z}); }));
  EXPECT_TRUE(share([&] { torch::cat({x, y, x}); }, [&] { torch::cat({z, y, z}); }));
  std::vector<at::Tensor> many, other;
  for (int i = 0; i < 40; ++i) many.push_back(torch::rand({4, 6}));
  other = many;
  EXPECT_TRUE(share([&] { torch::cat(many); }, [&] { torch::cat(other); }));
  other[39] = other[20];
  EXPECT_FALSE(share([&] { torch::cat(many); }, [&] { torch::cat(other); }));
  other[39] = other[3];
  EXPECT_FALSE(share([&] { torch::cat(many); }, [&] { torch::cat(other); }));
}

class CallFormsUnder : public CallFormsTest,
                       public ::testing::WithParamInterface<testing::AmbientSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, CallFormsUnder, ::testing::ValuesIn(testing::ambient_settings()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CallFormsUnder, AnotherSettingIsAnotherForm) {
  CallForms forms;
  const auto form = [&] { return form_of(forms, [&] { at::exp(x); }); };
  CallForm* const plain = form();
  GetParam().set(true);
  CallForm* const other = form();
  EXPECT_EQ(form(), other);
  GetParam().set(false);
  EXPECT_NE(other, plain);
  EXPECT_EQ(form(), plain);
}

TEST_F(CallFormsTest, NotANumberIsTheSameNotANumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(share([&] { x.add(nan); }, [&] { x.add(nan); }));
}

// Whoever has a call keeps its form; the table may be begun anew.
TEST_F(CallFormsTest, TheTableIsBounded) {
  CallForms forms;
  const std::unique_ptr<RecordedCall> kept =
      std::make_unique<RecordedCall>(*form_of(forms, [&] { x.exp(); }));
  forms.renew();
  EXPECT_EQ(form_of(forms, [&] { x.exp(); }), &kept->form());
  for (std::size_t i = 0; i < CallForms::kMost / 2; ++i) {
    form_of(forms, [&] { x.add(static_cast<double>(i)); });
  }
  forms.renew();
  EXPECT_NE(form_of(forms, [&] { x.exp(); }), &kept->form());
  EXPECT_EQ(kept->name(), "aten::exp");
  // Past the most they are their caller's alone.
  for (std::size_t i = 0; i + 1 < CallForms::kMost; ++i) {
    form_of(forms, [&] { x.add(static_cast<double>(i)); });
  }
  const RecordedCall one(*form_of(forms, [&] { x.tanh(); }));
  const RecordedCall other(*form_of(forms, [&] { x.tanh(); }));
  EXPECT_NE(&one.form(), &other.form());
}

}  // namespace
}  // namespace reprise::libtorch
