// Ambient state, aliases, raw pointers, threads and errors.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>

#include <cfenv>
#include <stdexcept>
#include <thread>

#include "tests/sweep/hostile_program.h"

namespace reprise::testing {
namespace {

using at::Tensor;
using World = HostileWorld;

// What fails is gone on after, but for the budget's own refusal.
template <class F>
void must_fail(const F& f) {
  try {
    f();
  } catch (const BudgetError&) {
    throw;
  } catch (const std::exception&) {
    return;
  }
  throw std::logic_error("what must fail has not failed");
}

void threads(World& w) {
  at::set_num_threads(w.coin() ? 1 : 2);
  const Tensor wide = at::cat(
      {w.any(), w.any(), w.any(), w.any(), w.any(), w.any(), w.any(), w.any(), w.any(), w.any()});
  w.add(w.any() * wide.softmax(0).sum(0) + wide.mean());
}

void onednn(World& w) {
  at::globalContext().setUserEnabledMkldnn(w.coin());
  w.add(at::conv2d(w.any().view({1, 4, 32, 32}),
                   w.leaves[1].view({-1}).narrow(0, 0, 144).view({4, 4, 3, 3}), {}, 1, 1)
            .view({kSide, kSide})
            .tanh());
}

void precision(World& w) {
  at::globalContext().setFloat32MatmulPrecision(w.coin() ? "medium" : "highest");
  w.add(w.any().mm(w.any()).tanh());
}

void flush_denormals(World& w) {
  at::globalContext().setFlushDenormal(w.coin());
  w.add(w.any() + (w.any().detach() * 1e-39).mul(1e38));
}

void rounding(World& w) {
  const int before = std::fegetround();
  std::fesetround(w.coin() ? FE_UPWARD : FE_TOWARDZERO);
  const Tensor sum = w.any() * w.any() + w.any() / 3;
  std::fesetround(before);
  w.add(sum.tanh());
}

void default_dtype(World& w) {
  at::set_default_dtype(caffe2::TypeMeta::fromScalarType(w.coin() ? at::kDouble : at::kFloat));
  const Tensor ratio = (w.any().detach() * 100).to(at::kLong) / 3;
  w.keep(ratio);
  w.add(w.any() + ratio.to(at::kFloat).tanh() + at::full({kSide}, 0.5).to(at::kFloat));
}

void deterministic(World& w) {
  at::globalContext().setDeterministicAlgorithms(w.coin(), /*warn_only=*/true);
  const Tensor places = at::randint(kSide, {3 * kSide}, at::kLong);
  w.add(w.any().index_add(0, places, at::cat({w.any(), w.any(), w.any()}), 0.1).tanh());
}

void autocast(World& w) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const Tensor product = at::linear(w.any(), w.leaves[1]).tanh().mm(w.any());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  w.add(product.to(at::kFloat).tanh());
}

void no_grad(World& w) {
  Tensor made;
  {
    const at::NoGradGuard off;
    made = w.any().sin() * w.any();
    made.add_(w.any());
  }
  w.add(w.any() * made);
}

void inference(World& w) {
  Tensor made;
  {
    const c10::InferenceMode on;
    made = at::gelu(w.any().detach() * 2);
    made.mul_(0.5);
    w.keep(made.clone());
  }
  w.add(w.any() * made.clone());
}

void seeds(World& w) {
  if (w.coin()) at::manual_seed(static_cast<std::uint64_t>(w.number(9)));
  w.add(at::dropout(w.any(), 0.3, true) + at::rand({kSide}, w.generator));
  w.add(w.any() * at::rand_like(w.any()) + at::empty({kSide}).bernoulli_(0.4).mul(0.1));
}

void gives_memory(World& w) {
  Tensor other = w.any().detach().cos(), memory = w.any().detach().exp();
  const Tensor before = memory.sin();
  memory.set_(other);
  memory.add_(1);
  w.add(w.any() * other + before);
  memory.resize_({2 * kSide, kSide}).narrow(0, kSide, kSide).copy_(before);
  w.add(w.any() * memory.narrow(0, kSide / 2, kSide).tanh());
}

void overlapping(World& w) {
  const Tensor base = w.any().clone();
  const Tensor folded = base.view({-1}).as_strided({kSide, kSide}, {kSide - 1, 1}, 3);
  w.add(folded.sin());
  const Tensor plain = base.data();  // another version
  plain.as_strided({kSide - 1, 7}, {kSide + 1, 1}, 3).mul_(0.5);
  plain.view(at::kInt).narrow(0, 3, 2).bitwise_and_(-4096);
  w.add(w.any() * plain.cos());
}

void swapped(World& w) {
  Tensor a = w.any().detach().sin(), b = w.any().detach().cos();
  const Tensor view = a.t();
  const Tensor before = view.exp();
  a.set_data(b);
  b.mul_(2);
  w.add(w.any() * (a + before) + view);
  auto& first = w.values[static_cast<std::size_t>(w.number(std::ssize(w.values)))];
  std::swap(first, w.values.back());
}

void lazily_cloned(World& w) {
  const Tensor original = w.any().detach().sin();
  const Tensor copy = original._lazy_clone();
  (w.coin() ? original : copy).mul_(3);
  w.add(w.any() * copy + original);
}

void into_aliases(World& w) {
  Tensor out = w.any().detach() * 2;
  const Tensor before = out.exp();
  at::mul_out(out, out, w.any().detach());
  at::cumsum_out(out, out, 0);
  Tensor part = out.narrow(0, 4, 8);
  at::tanh_out(part, out.narrow(0, 20, 8));
  w.add((w.any() * out.tanh() + before).tanh());
}

void foreach_lists(World& w) {
  Tensors list{w.any().detach().clone(), w.any().detach().sin(), w.any().detach().exp()};
  const Tensor before = list[1].cos();
  at::_foreach_mul_(list, 0.5);
  at::_foreach_add_(list, {list[1], list[2], list[0]});
  at::_foreach_tanh_(list);
  w.add(w.any() * list[0] + list[1] * before - list[2]);
}

void pinned(World& w) {
  const Tensor value = w.any();
  auto pin = std::make_unique<Pin>(value.detach());
  const Tensor plain = value.detach().contiguous();
  const Pin mine(plain);
  const float* const data = plain.const_data_ptr<float>();
  const Tensor made = w.any().exp().tanh();  // operators while the pointer is held
  float sum = 0;
  for (std::int64_t i = 0; i < plain.numel(); ++i) sum += data[i];
  w.add(made * std::tanh(sum));
  if (w.coin()) w.pins.push_back(std::move(pin));
}

void filled_by_hand(World& w) {
  const Tensor made = at::empty({kSide, kSide});
  auto* const data = made.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < made.numel(); ++i) data[i] = 0.001F * static_cast<float>(i % 977);
  w.add(w.any() * made);
}

void foreign(World& w) {
  auto& bytes = w.memory.emplace_back(static_cast<std::size_t>(kSide * kSide), 0.5F);
  const Tensor lent = at::from_blob(bytes.data(), {kSide, kSide});
  const Tensor copy = lent * 2;
  w.add(w.any() * copy);
  for (float& each : bytes) each = -1;  // what was computed must stay what it was
  w.add(w.any() + copy * lent);
}

void freed_elsewhere(World& w) {
  Tensors dead{w.any().detach().exp(), w.any().sin()};
  w.add(dead[0] * w.any() + dead[1]);
  std::thread([moved = std::move(dead)]() mutable { moved.clear(); }).join();
}

// It has no step, and must not be refused for one.
void worker(World& w) {
  Tensor loaded;
  std::string refused;
  std::thread([&] {
    try {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
      Tensors batch;
      for (int i = 0; i < 4; ++i) batch.push_back(at::rand({kSide, kSide}, generator));
      loaded = at::stack(batch).sum(0);
    } catch (const std::exception& error) {
      refused = error.what();
    }
  }).join();
  if (!refused.empty()) throw std::logic_error("a thread without a step has failed: " + refused);
  w.add(w.any() * loaded);
}

void wrong_shapes(World& w) {
  const Tensor value = w.any().detach().clone();
  const Tensor before = value.exp();
  must_fail([&] { value.mm(at::ones({3, 3})); });
  must_fail([&] { value.add_(at::ones({7, 5})); });
  must_fail([&] { value.index_select(0, at::full({2}, 9999, at::kLong)); });
  must_fail([&] { at::linalg_cholesky(value.neg().sub(9)); });
  w.add(w.any() * value + before);
}

Tensors slopes_of(const Tensor& loss, const Tensors& leaves) {
  return torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

void failing_backward(World& w) {
  const Tensor value = (w.any() * w.any()).exp().tanh();
  const Tensor middle = value.clone();
  int left = 1;
  middle.register_hook([&left](const Tensor& slope) {
    if (left-- > 0) throw std::runtime_error("a hook fails");
    return slope;
  });
  const Tensor loss = (middle.sin() * w.any()).sum();
  must_fail([&] { slopes_of(loss, w.leaves); });
  for (const Tensor& slope : slopes_of(loss, w.leaves)) {
    if (slope.defined()) w.keep(slope);
  }
  w.add(value);
}

void hooks(World& w) {
  const Tensor value = w.any() * w.any();
  value.register_hook([](const Tensor& slope) { return slope * 0.5; });
  const Tensor other = value.tanh();
  other.register_hook([](const Tensor& slope) { slope.mul_(0.75); });
  w.add(other);
}

}  // namespace

std::vector<HostilePart> state_parts() {
  return {{"threads", threads, true},
          {"onednn", onednn, true},
          {"precision", precision, true},
          {"flush_denormals", flush_denormals, true},
          {"rounding", rounding},
          {"default_dtype", default_dtype, true},
          {"deterministic", deterministic, true},
          {"autocast", autocast, true},
          {"no_grad", no_grad},
          {"inference", inference},
          {"seeds", seeds, true},
          {"gives_memory", gives_memory},
          {"overlapping", overlapping},
          {"swapped", swapped},
          {"lazily_cloned", lazily_cloned},
          {"into_aliases", into_aliases},
          {"foreach_lists", foreach_lists},
          {"pinned", pinned},
          {"filled_by_hand", filled_by_hand},
          {"foreign", foreign},
          {"freed_elsewhere", freed_elsewhere},
          {"worker", worker},
          {"wrong_shapes", wrong_shapes},
          {"failing_backward", failing_backward},
          {"hooks", hooks}};
}

}  // namespace reprise::testing
