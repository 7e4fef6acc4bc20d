// Scopes, counters and one training step behind a C interface, so that a Python interpreter can
// drive the C++ hooks through ctypes, in its own process and threads, without a Python header in
// the library.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <reprise/checkpoint.h>
#include <reprise/memory.h>
#include <reprise/saved_tensor_hooks.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <variant>

namespace {

std::atomic<long> packs{0};
std::atomic<long> unpacks{0};
std::atomic<long> alive{0};
std::atomic<bool> refuse{false};

class Counted final {
 public:
  explicit Counted(at::Tensor tensor) : tensor_(std::move(tensor)) {
    ++packs;
    ++alive;
  }
  ~Counted() { --alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  at::Tensor unpack() {
    ++unpacks;
    if (refuse) throw std::out_of_range("unpack was told to refuse");
    return tensor_;
  }

 private:
  at::Tensor tensor_;
};

using Scope =
    std::variant<std::monostate, reprise::SavedTensorHooksScope, reprise::NoSavedTensorHooksScope>;

at::Tensor layer(const at::Tensor& x, const at::Tensor& w) {
  return at::dropout(x.matmul(w), 0.5, /*train=*/true).exp().softmax(1);
}

template <class Layer>
std::vector<at::Tensor> gradients(const at::Tensor& x, const at::Tensor& w, Layer run_layer) {
  at::manual_seed(7);
  const at::Tensor loss = run_layer(run_layer(x)).pow(2).sum();
  return torch::autograd::grad({loss}, {x, w});
}

}  // namespace

extern "C" {

void* hooks_open(bool copying) {
  return new Scope(
      std::in_place_type<reprise::SavedTensorHooksScope>,
      [copying](const at::Tensor& tensor) {
        return std::make_unique<Counted>(copying ? tensor.clone() : tensor);
      },
      [](const std::unique_ptr<Counted>& counted) { return counted->unpack(); });
}
void* hooks_open_none() { return new Scope(std::in_place_type<reprise::NoSavedTensorHooksScope>); }
void hooks_close(void* scope) { delete static_cast<Scope*>(scope); }

long hooks_packs() { return packs; }
long hooks_unpacks() { return unpacks; }
long hooks_alive() { return alive; }
void hooks_refuse(bool on) { refuse = on; }

// 1 if a step through regions has the gradients of the plain one, bit by bit.
int checkpointed_step_equals_plain(bool reentrant, bool nested) {
  const at::Tensor x = at::randn({8, 8}).requires_grad_(true),
                   w = at::randn({8, 8}).requires_grad_(true);
  const reprise::CheckpointOptions options{.reentrant = reentrant};
  const auto plain = gradients(x, w, [&](const at::Tensor& t) { return layer(t, w); });
  int runs = 0;
  const auto region = [&](const at::Tensor& t) {
    const auto counted = [&runs](const at::Tensor& input, const at::Tensor& weight) {
      ++runs;
      return layer(input, weight);
    };
    if (!nested) return reprise::checkpoint(options, counted, t, w);
    const auto outer = [options, counted](const at::Tensor& input, const at::Tensor& weight) {
      return reprise::checkpoint(options, counted, input, weight);
    };
    return reprise::checkpoint(options, outer, t, w);
  };
  // Only backward() runs reentrant regions.
  at::manual_seed(7);
  region(region(x)).pow(2).sum().backward();
  const bool equal = x.grad().equal(plain[0]) && w.grad().equal(plain[1]);
  return equal && runs >= 4 ? 1 : 0;
}

// What a step through a region that calls `name`, an operator (Tensor(a!) state, Tensor x) ->
// Tensor, leaves in a state of two zeros: their sum. In *runs: how often the region's function ran.
double state_after_region_with(const char* name, bool reentrant, long* runs) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  const at::Tensor state = at::zeros({2});
  const at::Tensor x = at::ones({2}).requires_grad_(true);
  *runs = 0;
  const auto body = [&](const at::Tensor& t) {
    ++*runs;
    torch::jit::Stack stack{state, t.detach()};
    op.callBoxed(&stack);
    return t.mul(stack.back().toTensor()).sin();
  };
  reprise::checkpoint({.reentrant = reentrant}, body, x).sum().backward();
  return state.sum().item<double>();
}

long meter_live_bytes() { return static_cast<long>(reprise::live_bytes().count); }
void* meter_open() { return new reprise::PeakScope(); }
long meter_close(void* scope) {
  const std::unique_ptr<reprise::PeakScope> owned(static_cast<reprise::PeakScope*>(scope));
  return static_cast<long>(owned->peak_above_start().count);
}

}  // extern "C"
