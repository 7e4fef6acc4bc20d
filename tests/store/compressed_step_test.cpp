// Steps whose saved tensors are compressed: with exact forms bitwise the plain ones, with lossy
// forms near to them, and in fewer bytes.
#include <reprise/budget.h>
#include <reprise/memory.h>
#include <reprise/offload.h>
#include <reprise/store.h>

#include "tests/store/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

// Dropout masks, results of ReLU with and without dropout, and values without any structure.
struct CompressedNetwork {
  torch::nn::Linear in{64, 256}, middle{256, 256}, out{256, 8};
  at::Tensor input = torch::randn({128, 64});

  at::Tensor forward() {
    at::Tensor y = in->forward(input).relu();
    y = torch::dropout(y, 0.5, /*train=*/true);
    y = middle->forward(y).tanh();
    y = torch::dropout(y, 0.2, /*train=*/true).relu();
    return out->forward(y).square().mean();
  }
  Tensors parameters() const {
    Tensors all;
    for (const auto& layer : {in, middle, out}) {
      for (const at::Tensor& parameter : layer->parameters()) all.push_back(parameter);
    }
    return all;
  }
};

struct CompressedRun {
  Tensors gradients;
  Bytes before, after;
};

CompressedRun run(CompressedNetwork& network, Compression compression) {
  const auto store = compressed_store({.compression = compression});
  CompressedRun run;
  run.gradients = gradients_of(
      [&] {
        torch::manual_seed(11);
        const OffloadScope scope(store, Bytes(0));
        at::Tensor loss = network.forward();
        run.before = store->statistics().parked;
        run.after = store->compressed();
        return loss;
      },
      network.parameters());
  EXPECT_EQ(store->statistics().count, 0);
  EXPECT_EQ(store->compressed(), Bytes(0));
  return run;
}

double relative_error(const Tensors& actual, const Tensors& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (actual[i] - expected[i]).square().sum().item<double>();
    size += expected[i].square().sum().item<double>();
  }
  return std::sqrt(error / size);
}

TEST(CompressedStep, ExactFormsLeaveTheGradientsAsTheyAreInFewerBytes) {
  torch::manual_seed(5);
  CompressedNetwork network;
  const Tensors plain = gradients_of(
      [&] {
        torch::manual_seed(11);
        return network.forward();
      },
      network.parameters());
  const CompressedRun exact = run(network, Compression::kExact);
  EXPECT_TRUE(same_bits(exact.gradients, plain));
  EXPECT_LT(exact.after.count, exact.before.count * 3 / 4);

  const CompressedRun bf16 = run(network, Compression::kBfloat16);
  const CompressedRun eight = run(network, Compression::kInt8);
  const CompressedRun four = run(network, Compression::kInt4);
  const double bf16_error = relative_error(bf16.gradients, plain);
  const double eight_error = relative_error(eight.gradients, plain);
  const double four_error = relative_error(four.gradients, plain);
  EXPECT_GT(bf16_error, 0);
  EXPECT_LT(bf16_error, 0.01);
  EXPECT_GT(eight_error, 0);
  EXPECT_LT(eight_error, 0.03);
  EXPECT_GT(four_error, eight_error);
  EXPECT_LT(four_error, 0.3);
  EXPECT_LT(bf16.after, exact.after);
  EXPECT_LT(eight.after, bf16.after);
  EXPECT_LT(four.after, eight.after);
  RecordProperty("gradient_error_8_bits", std::to_string(eight_error));
  RecordProperty("gradient_error_4_bits", std::to_string(four_error));
}

TEST(CompressedStep, ABudgetDoesNotParkInMemoryThatItCounts) {
  EXPECT_EQ(
      error_of<UsageError>([] { MemoryBudget budget(GiB(1), {.store = compressed_store()}); }),
      "BudgetOptions.store: the compressed store (exact) needs memory that the budget counts at "
      "the moment that there is none, and the budget itself keeps values of two kinds in a bit an "
      "element; give it a disk_store(), or none");
  EXPECT_TRUE(contains(error_of<UsageError>([] {
                         const auto store = compressed_store({.compression = Compression::kInt8});
                         MemoryBudget budget(GiB(1), {.store = store});
                       }),
                       "compressed store (8 bits) does not give values back bit by bit"));
}

}  // namespace
}  // namespace reprise
