// What LibTorch's composites read through a raw pointer is there while they call other operators.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::does_the_same_when_all_is_dropped;
using testing::leaf;
using testing::Tensors;

// As the step's operators make it.
Tensor made(const std::vector<std::int64_t>& numbers) {
  return at::tensor(numbers, at::kLong).clone();
}

Tensors slopes_of(const Tensor& result, const Tensors& leaves) {
  return torch::autograd::grad({result.square().sum()}, leaves);
}

struct Recurrent {
  const char* name;
  int gates;
  Tensors (*run)(const Tensor& data, const Tensor& sizes, const Tensor& state, const Tensors&);
};

constexpr Recurrent kRecurrent[] = {
    {"lstm", 4,
     [](const Tensor& data, const Tensor& sizes, const Tensor& state, const Tensors& weights) {
       auto [y, h, c] = at::lstm(data, sizes, {state, state.clone()}, weights, true, 2, 0.25,
                                 /*train=*/true, /*bidirectional=*/true);
       return Tensors{y, h, c};
     }},
    {"gru", 3,
     [](const Tensor& data, const Tensor& sizes, const Tensor& state, const Tensors& weights) {
       auto [y, h] = at::gru(data, sizes, state, weights, true, 2, 0.25, true, true);
       return Tensors{y, h};
     }},
    {"rnn_tanh", 1,
     [](const Tensor& data, const Tensor& sizes, const Tensor& state, const Tensors& weights) {
       auto [y, h] = at::rnn_tanh(data, sizes, state, weights, true, 2, 0.25, true, true);
       return Tensors{y, h};
     }},
    {"rnn_relu", 1,
     [](const Tensor& data, const Tensor& sizes, const Tensor& state, const Tensors& weights) {
       auto [y, h] = at::rnn_relu(data, sizes, state, weights, true, 2, 0.25, true, true);
       return Tensors{y, h};
     }},
};

class PackedSequences : public ::testing::TestWithParam<Recurrent> {};
INSTANTIATE_TEST_SUITE_P(Networks, PackedSequences, ::testing::ValuesIn(kRecurrent),
                         [](const auto& info) { return info.param.name; });

TEST_P(PackedSequences, HaveTheirBatchSizesWhileTheyAreRead) {
  constexpr std::int64_t kWidth = 3;
  at::manual_seed(1);
  Tensors weights;
  for (int layer = 0; layer < 2; ++layer) {
    for (int direction = 0; direction < 2; ++direction) {
      const std::int64_t rows = GetParam().gates * kWidth;
      for (const std::int64_t width : {layer == 0 ? 2 : 2 * kWidth, kWidth}) {
        weights.push_back(leaf({rows, width}));
      }
      for (int k = 0; k < 2; ++k) weights.push_back(leaf({rows}));
    }
  }
  const Tensor x = leaf({7, 3, 2});
  Tensors leaves = weights;
  leaves.push_back(x);
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    const auto [data, sizes] = at::_pack_padded_sequence(x * 2, made({7, 4, 2}), false);
    Tensors results = GetParam().run(data, sizes, at::zeros({4, 3, kWidth}), weights);
    results.push_back(std::get<0>(at::_pad_packed_sequence(results[0], sizes, false, 0, 7)));
    const Tensors slopes = slopes_of(results.back(), leaves);
    results.insert(results.end(), slopes.begin(), slopes.end());
    return results;
  }));
}

// More steps than `min_bytes` has room for in the batch sizes.
TEST(Pointers, ALongPackedSequenceFindsItsBatchSizes) {
  constexpr std::int64_t kSteps = 2300;
  at::manual_seed(1);
  const Tensors weights{at::rand({16, 8}), at::rand({16, 4}), at::rand({16}), at::rand({16})};
  const Tensor x = at::rand({kSteps, 2, 8}), state = at::zeros({1, 2, 4});
  EXPECT_TRUE(does_the_same_when_all_is_dropped(
      [&] {
        const auto [data, sizes] =
            at::_pack_padded_sequence(x, at::tensor({kSteps, kSteps / 2}, at::kLong), false);
        return Tensors{std::get<0>(
            at::lstm(data * 2, sizes, {state, state}, weights, true, 1, 0, false, false))};
      },
      {.paranoid = true}));
}

struct Lengths {
  const char* name;
  Tensor (*of)(const std::vector<std::int64_t>& numbers);
};

constexpr Lengths kLengths[] = {
    {"result", [](const std::vector<std::int64_t>& numbers) { return made(numbers); }},
    {"row_of_a_table",
     [](const std::vector<std::int64_t>& numbers) {
       const Tensor table = at::stack({made(numbers), made(numbers)}) + 0;
       return table[1];
     }},
    {"one_of_many_rows",
     [](const std::vector<std::int64_t>& numbers) {
       const Tensor table = at::stack({made(numbers), made(numbers)}) + 0;
       return table.unbind(0)[0];
     }},
    {"column",
     [](const std::vector<std::int64_t>& numbers) {
       return made(numbers).view({-1, 1});
     }},
    {"bytes",
     [](const std::vector<std::int64_t>& numbers) {
       return made(numbers).view(at::kByte).clone().view(at::kLong);
     }},
    {"written_in_place",
     [](const std::vector<std::int64_t>& numbers) { return (made(numbers) - 1).add_(1); }},
    {"buffer",
     [](const std::vector<std::int64_t>& numbers) {
       const Tensor buffer = at::zeros({2, static_cast<std::int64_t>(numbers.size())}, at::kLong);
       const Tensor row = buffer[0];
       buffer.copy_(at::stack({made(numbers), made(numbers)}));
       return row;
     }},
    {"given_by_set",
     [](const std::vector<std::int64_t>& numbers) {
       const Tensor table = at::stack({made(numbers), made(numbers)}) + 0;
       const auto count = static_cast<std::int64_t>(numbers.size());
       return at::empty({0}, at::kLong).set_(table.storage(), count, {count}, {1});
     }},
};

class PointersInto : public ::testing::TestWithParam<Lengths> {};
INSTANTIATE_TEST_SUITE_P(Lengths, PointersInto, ::testing::ValuesIn(kLengths),
                         [](const auto& info) { return info.param.name; });

TEST_P(PointersInto, LengthsFindTheLengths) {
  const bool is_column = std::string(GetParam().name) == "column";
  at::manual_seed(1);
  const Tensor x = leaf({9, 4, 5});
  const Tensor targets = at::randint(1, 5, {4, 3}, at::kLong);
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    const Tensor long_ones = GetParam().of({9, 8, 9, 7}), short_ones = GetParam().of({3, 1, 2, 3});
    const Tensor loss =
        at::ctc_loss((x * 2).log_softmax(2), targets, long_ones, short_ones, 0, at::Reduction::Sum);
    Tensors results = slopes_of(loss, {x});
    if (is_column) return results;
    // Reads one after the other, and takes a part between.
    const Tensor places = GetParam().of({2, 3, 7});
    for (const Tensor& part : at::tensor_split(x * 3, places, 0)) results.push_back(part.sin());
    return results;
  }));
}

TEST(Pointers, ASobolSequenceGoesOnWhereItWas) {
  const Tensor scale = at::rand({5});
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    Tensor state = at::zeros({5, 30}, at::kLong);
    at::_sobol_engine_initialize_state_(state, 5);
    Tensor quasi = at::zeros({5}, at::kLong).clone();
    Tensors drawn;
    for (std::int64_t i = 0; i < 3; ++i) {
      auto [points, next] = at::_sobol_engine_draw(quasi, 4, state, 5, 4 * i, at::kFloat);
      quasi = next;
      drawn.push_back((points * scale).exp());
    }
    return drawn;
  }));
}

TEST(Pointers, ANestedTensorKnowsItsShapes) {
  const Tensor x = at::rand({48});
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    const Tensor sizes = made({2, 4, 3, 8, 4, 4}).view({3, 2}) + 0;
    const Tensor strides = made({4, 1, 8, 1, 4, 1}).view({3, 2}) + 0;
    const Tensor nested = at::_nested_view_from_buffer(x * 2, sizes, strides, made({0, 8, 32}));
    x.exp();
    EXPECT_TRUE(nested.is_contiguous());
    return Tensors{nested.contiguous().sin().to_padded_tensor(1)};
  }));
}

TEST(Pointers, WhetherADroppedTensorIsPinnedIsAnsweredWithoutItsBytes) {
  MemoryBudget budget(GiB(64), testing::paranoid());
  const Tensor x = at::rand({8, 16});
  auto step = budget.step();
  const Tensor y = x.exp();
  EXPECT_THROW(y.const_data_ptr(), c10::Error);
  EXPECT_FALSE(y.is_pinned());
  EXPECT_FALSE(y.t().is_pinned());
  EXPECT_FALSE(x.is_pinned());
  EXPECT_EQ(budget.report().replayed, 0);
  step.finish();
}

// Tables of whole numbers may be as large as activations.
TEST(Pointers, OnlyRowsOfWholeNumbersStay) {
  MemoryBudget budget(GiB(64), testing::paranoid());
  const Tensor x = at::rand({8, 16});
  auto step = budget.step();
  const auto [values, places] = x.topk(4);
  const Tensor lengths = (places.select(1, 0) + 1).to(at::kInt);
  const Tensor signs = x.sign().to(at::kChar);
  at::sin(x);
  EXPECT_THROW(values.const_data_ptr(), c10::Error);
  EXPECT_THROW(signs.const_data_ptr(), c10::Error);
  EXPECT_NO_THROW(lengths.const_data_ptr());
  // A column of the table was read as a row is.
  EXPECT_NO_THROW(places.const_data_ptr());
  const Tensor table = std::get<1>(x.sort(1));
  EXPECT_THROW(table.const_data_ptr(), c10::Error);
  const Tensor row = table[3];
  EXPECT_NO_THROW(row.const_data_ptr());
  step.finish();
}

}  // namespace
}  // namespace reprise
