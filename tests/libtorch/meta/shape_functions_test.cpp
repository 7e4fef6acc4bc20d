// Shape functions make what the real kernels make.
#include "libtorch/meta/shape_functions.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/libtorch/meta/shape_cases.h"
#include "tests/refusal.h"

namespace reprise::libtorch {
namespace {

using testing::Arguments;
using testing::Draw;
using testing::ShapeCase;

constexpr unsigned kDraws = 60;

std::vector<ShapeCase> all_cases() {
  std::vector<ShapeCase> cases = testing::network_cases();
  for (const auto& more :
       {testing::image_cases(), testing::element_cases(), testing::recurrent_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

c10::OperatorHandle operator_of(const std::string& name) {
  const std::size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                        overload.c_str());
}

// The same arguments on meta, with the same strides.
c10::IValue on_meta(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& real = value.toTensor();
    if (!real.defined()) return value;
    const at::TensorOptions options(at::kMeta);
    const auto bytes = static_cast<std::int64_t>(real.storage().nbytes());
    const at::Tensor memory = at::empty({bytes}, options.dtype(at::kByte));
    return at::empty({0}, options.dtype(real.scalar_type()))
        .set_(memory.storage(), real.storage_offset(), real.sizes(), real.strides());
  }
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& real : value.toTensorVector()) {
      tensors.push_back(on_meta(real).toTensor());
    }
    return tensors;
  }
  return value;
}

Arguments on_meta(const Arguments& arguments) {
  Arguments moved;
  for (const c10::IValue& value : arguments) moved.push_back(on_meta(value));
  return moved;
}

// Which argument a tensor shares its memory with; -1: none.
int owner_of(const at::Tensor& tensor, const Arguments& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isTensor() && arguments[i].toTensor().defined() &&
        arguments[i].toTensor().is_alias_of(tensor)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::string described(const c10::IValue& value, const Arguments& arguments) {
  if (value.isTensor()) {
    const at::Tensor& x = value.toTensor();
    if (!x.defined()) return "undefined";
    return c10::str(x.sizes(), " strides ", x.strides(), " ", x.scalar_type(), " ", x.layout(),
                    " of ", x.storage().nbytes(), " B, memory of argument ",
                    owner_of(x, arguments));
  }
  std::string text;
  if (value.isTensorList()) {
    for (const at::Tensor& x : value.toTensorVector()) text += described(x, arguments) + "; ";
    return text;
  }
  return c10::str(value);
}

// What a call returns, and what it makes of its arguments.
std::string outcome(const c10::OperatorHandle& op, const Arguments& arguments) {
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::Stack stack = arguments;
  const auto& expected = op.schema().arguments();
  for (std::size_t i = stack.size(); i < expected.size(); ++i) {
    stack.push_back(*expected[i].default_value());
  }
  op.callBoxed(&stack);
  std::string text = "results:";
  for (const c10::IValue& value : stack) text += "\n  " + described(value, arguments);
  text += "\narguments:";
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) text += "\n  " + described(value, {});
  }
  return text;
}

class ShapeFunctions : public ::testing::TestWithParam<ShapeCase> {
 protected:
  static void SetUpTestSuite() { ensure_shape_functions(); }
};

TEST_P(ShapeFunctions, MakeWhatTheKernelsMake) {
  const c10::OperatorHandle op = operator_of(GetParam().op);
  for (unsigned seed = 0; seed < kDraws; ++seed) {
    Draw draw(seed);
    const Arguments arguments = GetParam().arguments(draw);
    const Arguments meta = on_meta(arguments);
    const std::string real = outcome(op, arguments);
    ASSERT_EQ(outcome(op, meta), real) << "draw " << seed;
  }
}

std::string test_name(const ::testing::TestParamInfo<ShapeCase>& info) {
  std::string name = info.param.op.substr(6);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(OfTheTable, ShapeFunctions, ::testing::ValuesIn(all_cases()), test_name);

// Operators of the table without a comparison of one call, and why.
const std::map<std::string, std::string> kElsewhere = {
    {"aten::dropout", "a choice by device: whole steps are compared"},
    {"aten::lstm.input", "a choice by device: whole steps are compared"},
    {"aten::gru.input", "a choice by device: whole steps are compared"},
    {"aten::rnn_tanh.input", "a choice by device: whole steps are compared"},
    {"aten::rnn_relu.input", "a choice by device: whole steps are compared"},
    {"aten::group_norm", "a choice by device: whole steps are compared"},
    {"aten::scaled_dot_product_attention", "a choice by device: whole steps are compared"},
    {"aten::convolution_overrideable", "no kernel but other backends': shares convolution's"},
    {"aten::_scaled_dot_product_flash_attention", "CUDA only: documented shapes"},
    {"aten::_scaled_dot_product_flash_attention_backward", "CUDA only: documented shapes"},
    {"aten::_scaled_dot_product_efficient_attention", "CUDA only: documented shapes"},
    {"aten::_scaled_dot_product_efficient_attention_backward", "CUDA only: documented shapes"},
};

// LibTorch has nothing that would run on meta, not even a composite.
bool is_lacking(const std::string& name) {
  using c10::DispatchKey;
  const auto op = operator_of(name);
  return !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

TEST(ShapeFunctionTable, HasWhatLibTorchLacks) {
  const std::vector<std::string> table = operators_with_shape_functions();
  EXPECT_GE(std::count_if(table.begin(), table.end(), is_lacking), 120);
}

TEST(ShapeFunctionTable, IsComparedWhole) {
  std::set<std::string> compared;
  for (const ShapeCase& each : all_cases()) compared.insert(each.op);
  const std::vector<std::string> table = operators_with_shape_functions();
  EXPECT_TRUE(std::is_sorted(table.begin(), table.end()));
  EXPECT_EQ(std::set<std::string>(table.begin(), table.end()).size(), table.size());
  for (const std::string& op : table) {
    EXPECT_NE(compared.contains(op), kElsewhere.contains(op)) << op;
  }
  EXPECT_EQ(table.size(), compared.size() + kElsewhere.size());
}

}  // namespace
}  // namespace reprise::libtorch
