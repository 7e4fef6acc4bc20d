// Sizes are those of oneDNN's own arithmetic: rows end on cache lines, parts begin on pages.
#include "libtorch/meta/onednn.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <algorithm>

#include "core/rounding.h"

namespace reprise::libtorch::onednn {

namespace {

constexpr std::int64_t kFloat = 4, kLine = 16, kPage = 4096, kGates = 4;

// The length of a matrix's row: on cache lines, but never a multiple of 256, so that rows do not
// fall on the same lines of the cache.
std::int64_t row(std::int64_t length) {
  const std::int64_t lines = rounded_up(length, kLine);
  return lines % 256 == 0 ? lines + kLine : lines;
}

// Whether oneDNN has kernels for the CPU in that type of 16 bits.
bool computes_in(const char* asked) {
  const auto op = c10::Dispatcher::singleton().findSchema({asked, ""});
  if (!op) return true;
  torch::jit::Stack stack;
  op->callBoxed(&stack);
  return stack.at(0).toBool();
}

}  // namespace

bool takes_convolution(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef stride,
                       at::IntArrayRef dilation, std::int64_t groups) {
  constexpr std::int64_t kManyInputs = 16, kWideKernel = 3, kManyElements = 20480;
  if (!at::globalContext().userEnabledMkldnn()) return false;
  if (x.scalar_type() == at::kBFloat16) {
    static const bool computes = computes_in("mkldnn::_is_mkldnn_bf16_supported");
    return computes;
  }
  if (x.scalar_type() == at::kHalf) {
    static const bool computes = computes_in("mkldnn::_is_mkldnn_fp16_supported");
    return computes;
  }
  if (x.scalar_type() != at::kFloat) return x.scalar_type() != at::kDouble;
  const auto any_above_one = [](at::IntArrayRef values) {
    return std::ranges::any_of(values, [](std::int64_t value) { return value > 1; });
  };
  const bool is_single_pixel = weight.size(-1) == 1 && weight.size(-2) == 1;
  const bool worthwhile = any_above_one(stride) || any_above_one(dilation) ||
                          x.size(0) >= kManyInputs || !is_single_pixel || at::get_num_threads() > 1;
  const bool is_wide = weight.size(-1) > kWideKernel && weight.size(-2) > kWideKernel;
  return worthwhile && (groups > 1 || is_wide || x.size(0) > 1 ||
                        c10::multiply_integers(x.sizes().slice(0, 4)) > kManyElements);
}

std::int64_t channels_together() {
#if defined(__x86_64__)
  static const std::int64_t channels = __builtin_cpu_supports("avx512bw") ? 16
                                       : __builtin_cpu_supports("avx2")   ? 8
                                                                          : 1;
  return channels;
#else
  return 1;
#endif
}

bool takes_lstm(const at::Tensor& input, at::TensorList states, at::TensorList parameters) {
  // Otherwise LibTorch's own function says what is wrong.
  if (states.size() != 2 || states[0].dim() == 0 || states[1].dim() == 0) return false;
  const auto is_f32 = [](const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; };
  const std::int64_t hidden = states[0].size(-1);
  // A projection makes outputs narrower than the cell's state.
  const bool is_projected = states[1].size(-1) != hidden;
  return at::globalContext().userEnabledMkldnn() && input.numel() != 0 && is_f32(input) &&
         std::ranges::all_of(states, is_f32) && std::ranges::all_of(parameters, is_f32) &&
         !is_projected;
}

std::int64_t LstmLayer::workspace_bytes() const {
  const std::int64_t each_step = steps * batch * kFloat;
  // Of two levels (what goes in, and the layer), and one time more than there are steps.
  const std::int64_t each_state = 2 * (steps + 1) * batch * kFloat;
  const std::int64_t wide = row(std::max(input, hidden));
  std::int64_t bytes = 0;
  for (const std::int64_t part :
       {each_step * row(kGates * hidden), each_step * row(hidden), each_state * wide,
        each_state * hidden, each_state * wide, each_state * wide, each_state * hidden}) {
    bytes += rounded_up(part, kPage);
  }
  return bytes;
}

std::int64_t LstmLayer::scratchpad_bytes(bool is_forward) const {
  // Forward makes the gates of all steps in one product up to here, backward always.
  constexpr std::int64_t kBatchOfOneProduct = 128;
  // What is left when these parts are taken from the scratchpads of real calls: the same at all
  // sizes that were tried.
  constexpr std::int64_t kOverhead = 4664;
  const std::int64_t at_once = is_forward && batch >= kBatchOfOneProduct ? 1 : steps;
  return rounded_up(at_once * batch * row(kGates * hidden) * kFloat, kPage) +
         2 * rounded_up(batch * row(hidden) * kFloat, kPage) + kOverhead;
}

std::int64_t LstmLayer::forward_weights_bytes() const {
  return (input + hidden) * row(kGates * hidden) * kFloat;
}

std::int64_t LstmLayer::backward_weights_bytes() const {
  std::int64_t bytes = 0;
  for (const std::int64_t length : {input, hidden}) {
    if (row(length) != length) bytes += kGates * hidden * row(length) * kFloat;
  }
  return bytes;
}

}  // namespace reprise::libtorch::onednn
