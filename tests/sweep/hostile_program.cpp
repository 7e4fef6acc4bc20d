#include "tests/sweep/hostile_program.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>

#include <cfenv>
#include <cstdlib>
#include <string>

namespace reprise::testing {
namespace {

class AmbientAsEver {
 public:
  AmbientAsEver() { reset(); }
  ~AmbientAsEver() { reset(); }
  AmbientAsEver(const AmbientAsEver&) = delete;
  AmbientAsEver& operator=(const AmbientAsEver&) = delete;

 private:
  static void reset() {
    at::set_default_dtype(caffe2::TypeMeta::Make<float>());
    at::globalContext().setUserEnabledMkldnn(true);
    at::globalContext().setFlushDenormal(false);
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setFloat32MatmulPrecision("highest");
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    at::set_num_threads(1);
    std::fesetround(FE_TONEAREST);
  }
};

// By hand: parts to draw from, by name, with commas between.
const std::vector<HostilePart>& parts(bool is_alone) {
  const auto draw_from = [](bool alone) {
    std::vector<HostilePart> every = state_parts();
    for (const HostilePart& part : composite_parts()) every.push_back(part);
    if (!alone) std::erase_if(every, [](const HostilePart& part) { return part.alone; });
    const char* const named = std::getenv("REPRISE_HOSTILE_PARTS");
    if (named == nullptr) return every;
    const std::string only = std::string(",") + named + ",";
    std::erase_if(every, [&](const HostilePart& part) {
      return only.find(std::string(",") + part.name + ",") == std::string::npos;
    });
    return every;
  };
  static const std::vector<HostilePart> alone = draw_from(true), beside_others = draw_from(false);
  return is_alone ? alone : beside_others;
}

void run_backward(HostileWorld& w, const at::Tensor& loss) {
  const std::int64_t way = w.number(4);
  if (way == 1) loss.backward({}, /*retain_graph=*/true);
  if (way == 2) {
    const Tensors slopes =
        torch::autograd::grad({loss}, w.leaves, {}, /*retain_graph=*/true, false, true);
    for (const at::Tensor& slope : slopes) {
      if (slope.defined()) w.keep(slope);
    }
  }
  loss.backward();
}

void run_parts(HostileWorld& w, bool is_alone) {
  const std::vector<HostilePart>& all = parts(is_alone);
  const std::int64_t count = 4 + w.number(10);
  for (std::int64_t i = 0; i < count; ++i) {
    const HostilePart& part = all[static_cast<std::size_t>(w.number(std::ssize(all)))];
    w.told += std::string(i == 0 ? "" : " ") + part.name;
    part.run(w);
    // Some die early.
    if (w.values.size() > 6 && w.coin()) {
      w.values.erase(w.values.begin() + w.number(std::ssize(w.values)));
    }
  }
  at::Tensor loss = w.values[0].mean();
  for (const at::Tensor& value : w.values) loss = loss + (value * w.leaves[2]).mean();
  run_backward(w, loss);
  w.keep(loss);
  for (const at::Tensor& value : w.values) w.keep(value);
  w.values.clear();
}

}  // namespace

HostileWorld::HostileWorld(std::uint64_t seed, bool is_alone)
    : random(seed), generator(at::make_generator<at::CPUGeneratorImpl>(seed)) {
  if (is_alone) at::manual_seed(seed);
  for (int i = 0; i < 3; ++i) {
    leaves.push_back((at::randn({kSide, kSide}, generator) / 8).requires_grad_());
  }
  values = leaves;
  values.push_back(leaves[0] * leaves[1]);
}

HostileOutcome run_hostile(std::uint64_t seed, MemoryBudget* budget, bool is_alone) {
  std::optional<AmbientAsEver> as_ever;
  if (is_alone) as_ever.emplace();
  HostileWorld world(seed, is_alone);
  {
    std::optional<MemoryBudget::Step> step;
    if (budget != nullptr) step.emplace(budget->step());
    run_parts(world, is_alone);
    world.pins.clear();
    if (step) step->finish();
  }
  HostileOutcome outcome{std::move(world.kept), std::move(world.told)};
  for (at::Tensor& each : outcome.tensors) {
    each = (each.is_sparse() ? each.to_dense() : each).clone();
  }
  for (const at::Tensor& leaf : world.leaves) {
    outcome.tensors.push_back(leaf.detach().clone());
    outcome.tensors.push_back(leaf.grad());
  }
  if (is_alone) outcome.tensors.push_back(at::rand({4}));
  outcome.tensors.push_back(at::rand({4}, world.generator));
  return outcome;
}

}  // namespace reprise::testing
