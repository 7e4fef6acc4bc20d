// What a real step takes, beside what was said of it.
#pragma once

#include <gtest/gtest.h>
#include <reprise/estimate.h>
#include <reprise/memory.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>

#include "libtorch/meta/onednn.h"

namespace reprise::testing {

// The most bytes above those before it, of forward and backward without gradients to begin with.
// Run three times before, for malloc hands out whole pages until it has learnt the sizes.
inline Bytes measured_peak(torch::nn::Module& module, const std::function<at::Tensor()>& loss,
                           c10::Device device = c10::kCPU) {
  constexpr int kUncounted = 3;
  for (int i = 0; i < kUncounted; ++i) {
    module.zero_grad();
    loss().backward();
  }
  module.zero_grad();
  const PeakScope scope(device);
  loss().backward();
  const Bytes peak = scope.peak_above_start();
  module.zero_grad();
  return peak;
}

// That a step's predicted peak, above what is there before it, is within two percent of what was
// measured.
inline void expect_near(const Estimate& estimate, Bytes measured) {
  constexpr double kWithin = 0.02;
  const Bytes predicted = estimate.peak - estimate.state();
  const double ratio = static_cast<double>(predicted.count) / static_cast<double>(measured.count);
  ::testing::Test::RecordProperty("ratio", std::to_string(ratio));
  EXPECT_NEAR(ratio, 1, kWithin) << predicted.count << " of " << measured.count << " bytes at "
                                 << estimate.peak_operator;
}

// What oneDNN copies and keeps depends on the CPU.
inline bool has_wide_blocks() { return libtorch::onednn::channels_together() == 16; }
constexpr const char* kWhySkipped = "oneDNN's sizes were read off a CPU with AVX-512";

}  // namespace reprise::testing
