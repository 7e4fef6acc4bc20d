// A replayed call runs under the settings of its first run, whatever is in force by then, and puts
// those back.
#include <dlfcn.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <thread>

#include "tests/region/ambient_settings.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::ambient_settings;
using testing::AmbientSetting;
using testing::paranoid;
using testing::read_ambient_settings;
using testing::same_bits;
using testing::Tensors;

bool kernel_fails = false;

Tensor settings_of(const Tensor& like) {
  if (kernel_fails) throw std::runtime_error("the kernel kernel_fails");
  return testing::ambient_kernel(like);
}

// Calls operators, as kernels of composites with a key of their own do.
Tensor product_of(const Tensor& a, const Tensor& b) { return at::mm(a, b).to(at::kFloat).exp(); }

// Among which LibTorch's kernels would divide their work.
Tensor threads_at_work(const Tensor& like) {
  return at::full({2}, at::in_parallel_region() ? 1 : at::get_num_threads(), like.options());
}

TORCH_LIBRARY(reprise_ambient_test, library) {
  library.def("settings_of(Tensor like) -> Tensor");
  library.def("product_of(Tensor a, Tensor b) -> Tensor");
  library.def("threads_at_work(Tensor like) -> Tensor");
}
TORCH_LIBRARY_IMPL(reprise_ambient_test, CPU, library) {
  library.impl("settings_of", settings_of);
  library.impl("product_of", product_of);
  library.impl("threads_at_work", threads_at_work);
}

template <class... T>
Tensor call_operator(const char* name, const T&... arguments) {
  torch::jit::Stack stack{arguments...};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack[0].toTensor();
}

std::vector<double> values_of(const Tensor& settings) {
  const Pin pin(settings);
  return {settings.const_data_ptr<double>(), settings.const_data_ptr<double>() + settings.numel()};
}

Tensor settings_seen() { return call_operator("reprise_ambient_test::settings_of", at::ones({2})); }

class Ambient : public ::testing::TestWithParam<AmbientSetting> {
 protected:
  void SetUp() override { ASSERT_NE(under_other(), plain_); }
  void TearDown() override {
    kernel_fails = false;
    GetParam().set(false);
    EXPECT_EQ(read_ambient_settings(), plain_);
  }
  std::vector<double> under_other() const {
    GetParam().set(true);
    const std::vector<double> values = read_ambient_settings();
    GetParam().set(false);
    return values;
  }
  const std::vector<double> plain_ = read_ambient_settings();
};
INSTANTIATE_TEST_SUITE_P(Settings, Ambient, ::testing::ValuesIn(ambient_settings()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Ambient, AReplayRunsUnderThatOfTheFirstRunAndPutsBackWhatWasThere) {
  MemoryBudget budget(GiB(64), paranoid());
  Tensor one, other, again;
  {
    auto step = budget.step();
    one = settings_seen();
    GetParam().set(true);
    other = settings_seen();
    GetParam().set(false);
    const std::int64_t replays = budget.report().replayed;
    other = other * 1;
    EXPECT_GT(budget.report().replayed, replays);
    EXPECT_EQ(read_ambient_settings(), plain_);
    GetParam().set(true);
    one = one * 1;
    EXPECT_EQ(read_ambient_settings(), values_of(other));
    GetParam().set(false);
    again = settings_seen();
    step.finish();
  }
  EXPECT_EQ(values_of(one), plain_);
  EXPECT_EQ(values_of(other), under_other());
  EXPECT_EQ(values_of(again), plain_) << "calls under different settings share a form";
}

TEST_P(Ambient, AReplayThatFailsPutsBackWhatWasThere) {
  MemoryBudget budget(GiB(64), paranoid());
  auto step = budget.step();
  GetParam().set(true);
  const Tensor other = settings_seen();
  GetParam().set(false);
  kernel_fails = true;
  EXPECT_THROW(other + 1, std::runtime_error);
  EXPECT_EQ(read_ambient_settings(), plain_);
  kernel_fails = false;
  EXPECT_EQ(values_of(other + 0), under_other());
}

// What a kernel calls is cast, if its operator itself has no kernel for autocast.
TEST(AmbientAutocast, OperatorsThatAKernelCallsAreCastAgain) {
  const Tensor a = at::randn({4, 4}), b = at::randn({4, 4});
  EXPECT_TRUE(testing::does_the_same_when_all_is_dropped([&] {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor product = call_operator("reprise_ambient_test::product_of", a, b);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    const Tensor plain = call_operator("reprise_ambient_test::product_of", a, b);
    return Tensors{product * 2, plain * 2};
  }));
}

// What a program does that is compiled with OpenMP: `f` on this thread, inside of a parallel
// region.
bool run_in_parallel_region(const std::function<void()>& f) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (parallel == nullptr) return false;
  struct Work {
    const std::function<void()>& f;
    std::thread::id thread;
  } work{f, std::this_thread::get_id()};
  parallel(
      [](void* data) {
        const Work& given = *static_cast<Work*>(data);
        if (std::this_thread::get_id() == given.thread) given.f();
      },
      &work, 2, 0);
  return true;
}

TEST(AmbientThreads, InsideAParallelRegionAndOutsideOfItAReplayDividesAsAtFirst) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer does not see the barriers of OpenMP";
#endif
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  MemoryBudget budget(GiB(64), paranoid());
  auto step = budget.step();
  const Tensor x = at::ones({2});
  const Tensor outside = call_operator("reprise_ambient_test::threads_at_work", x);
  Tensor inside, read_inside;
  const bool has_run = run_in_parallel_region([&] {
    inside = call_operator("reprise_ambient_test::threads_at_work", x);
    read_inside = outside * 1;
  });
  EXPECT_EQ(at::get_num_threads(), 3);
  const Tensor read_outside = inside.defined() ? inside * 1 : inside;
  step.finish();
  at::set_num_threads(threads);
  if (!has_run) GTEST_SKIP() << "LibTorch is built without libgomp";
  EXPECT_EQ(read_inside[0].item<double>(), 3);
  EXPECT_EQ(read_outside[0].item<double>(), 1);
}

// Settings that kernels of LibTorch go by on this machine, if not on every one.
TEST(AmbientKernels, ProductsConvolutionsAndSumsAreTheSameBits) {
  const Tensor x = testing::leaf({2, 8, 16, 16}), w = testing::leaf({8, 8, 3, 3});
  const Tensor a = testing::leaf({96, 96}), v = testing::leaf({96, 96});
  at::Context& context = at::globalContext();
  const int threads = at::get_num_threads();
  EXPECT_TRUE(testing::is_right_when_all_is_dropped(
      [&] {
        context.setUserEnabledMkldnn(false);
        const Tensor y = at::conv2d(at::conv2d(x, w, {}, 1, 1).sigmoid(), w, {}, 1, 1).sigmoid();
        context.setUserEnabledMkldnn(true);
        context.setFloat32MatmulPrecision("medium");
        const Tensor h = (a.mm(v) * 0.05).tanh().mm(v);
        context.setFloat32MatmulPrecision("highest");
        at::set_num_threads(threads == 1 ? 2 : 1);
        const Tensor s = at::conv1d(h.unsqueeze(0), v.unsqueeze(2)).sum(1);
        at::set_num_threads(threads);
        return y.sum() + h.cos().sum() * s.sum();
      },
      {x, w, a, v}));
}

}  // namespace
}  // namespace reprise
