// Tests what only a CUDA device has: its autocast, several streams, SDPA's fused kernels, and
// offloading through pinned memory. Each gives the gradients of the plain step.
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <reprise/offload.h>

#include "tests/device/testing.h"

namespace reprise {
namespace {

using namespace testing_support;

// Autocast to bfloat16, also ended by an error.
struct Autocast {
  Autocast() {
    at::autocast::set_autocast_enabled(c10::kCUDA, true);
    at::autocast::set_autocast_dtype(c10::kCUDA, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(c10::kCUDA, false);
  }
};

class CudaKernels : public OnCudaDevice {
 protected:
  at::Tensor leaf(at::IntArrayRef sizes, c10::ScalarType type = at::kFloat) const {
    return at::randn(sizes).to(device_, type).requires_grad_(true);
  }
  // The gradients of `forward`, of the same draws in every call.
  static Tensors plain(const std::function<at::Tensor()>& forward, const Tensors& leaves) {
    return testing::gradients_of(forward, leaves);
  }
  static Tensors under(MemoryBudget& budget, const std::function<at::Tensor()>& forward,
                       const Tensors& leaves) {
    auto step = budget.step();
    Tensors mine = plain(forward, leaves);
    step.finish();
    return mine;
  }
  // Compares some steps in that share of a plain step's bytes with the plain step.
  void expect_the_same(double share, const std::function<at::Tensor()>& forward,
                       const Tensors& leaves) const {
    plain(forward, leaves);
    const Bytes before = live_bytes(device_);
    const PeakScope scope(device_);
    const Tensors expected = plain(forward, leaves);
    const auto above = static_cast<double>(scope.peak_above_start().count);
    MemoryBudget budget(before + Bytes(static_cast<std::int64_t>(share * above)), on_cuda());
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(same_bits(under(budget, forward, leaves), expected)) << "step " << i;
    }
    EXPECT_GT(budget.report().dropped, 0);
  }
};

TEST_F(CudaKernels, AutocastAndItsCacheMakeTheSameBitsUnderABudget) {
  const Tensors leaves = {leaf({1024, 1024}), leaf({4096, 1024})};
  expect_the_same(
      0.7,
      [&] {
        const Autocast autocast;
        at::Tensor h = leaves[1];
        for (int i = 0; i < 8; ++i) h = at::gelu(at::matmul(h, leaves[0])) + h;
        return h.to(at::kFloat).mean();
      },
      leaves);
}

TEST_F(CudaKernels, WorkOnASecondStreamIsReplayedWhereItIsRead) {
  const Tensors leaves = {leaf({2048, 2048}), leaf({2048, 2048})};
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream side = guard.getStreamFromGlobalPool(device_);
  expect_the_same(
      0.6,
      [&] {
        at::Tensor h = leaves[0];
        for (int i = 0; i < 6; ++i) {
          h = at::gelu(at::mm(h, leaves[1]) * 0.02);
          const c10::Stream main = at::accelerator::getCurrentStream(device_.index());
          c10::Event computed(c10::kCUDA);
          computed.record(main);
          at::Tensor beside;
          {
            const c10::StreamGuard on_side(side);
            computed.block(side);
            beside = at::tanh(h) * 0.5;
          }
          c10::Event returned(c10::kCUDA);
          returned.record(side);
          returned.block(main);
          h = h + beside;
        }
        return h.mean();
      },
      leaves);
}

TEST_F(CudaKernels, FusedAttentionIsReplayedWithItsDropoutAndStoresNoScores) {
  constexpr std::int64_t kTime = 8192, kHeads = 8;
  const Tensors leaves = {leaf({2, kHeads, kTime, 64}, at::kBFloat16),
                          leaf({2, kHeads, kTime, 64}, at::kBFloat16)};
  const auto forward = [&] {
    at::Tensor h = leaves[0];
    for (int i = 0; i < 4; ++i) {
      h = h + at::scaled_dot_product_attention(h, leaves[1], leaves[1], {}, 0.1, true);
    }
    return h.to(at::kFloat).pow(2).mean();
  };
  plain(forward, leaves);
  const PeakScope scope(device_);
  plain(forward, leaves);
  EXPECT_LT(scope.peak_above_start(), Bytes(2 * kHeads * kTime * kTime * 2))
      << "one matrix of scores would be larger";
  // Backward without atomic additions takes a workspace that nothing can make smaller.
  expect_the_same(0.9, forward, leaves);
}

TEST_F(CudaKernels, FusedAttentionInARegionHasTheSameGradients) {
  const Tensors leaves = {leaf({2, 8, 1024, 64}, at::kBFloat16)};
  const auto attend = [](const at::Tensor& x) {
    return at::scaled_dot_product_attention(x, x, x, {}, 0.1, true).to(at::kFloat).exp();
  };
  const Tensors expected = plain([&] { return attend(leaves[0]); }, leaves);
  EXPECT_TRUE(same_bits(plain([&] { return checkpoint(attend, leaves[0]); }, leaves), expected));
}

TEST_F(CudaKernels, SavedTensorsComeBackFromPinnedHostMemory) {
  Network network(device_);
  const Tensors expected = network.gradients();
  const auto store = host_store();
  for (int i = 0; i < 3; ++i) {
    const OffloadScope scope(store);
    EXPECT_TRUE(same_bits(network.gradients(), expected)) << "step " << i;
  }
  EXPECT_GT(store->statistics().read, MB(100));
  EXPECT_EQ(store->statistics().count, 0);
}

}  // namespace
}  // namespace reprise
