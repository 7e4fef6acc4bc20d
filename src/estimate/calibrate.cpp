// Rates of this machine, by running what they are rates of. The best that is seen is the rate:
// whatever else the machine does meanwhile only slows a run down.
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <reprise/error.h>
#include <reprise/estimate.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "core/clock.h"
#include "core/statistics.h"
#include "estimate/step_checks.h"

namespace reprise {

namespace {

// Products large enough to reach the full rate, small enough to be run several times a second.
constexpr std::int64_t kSide = 768;
// Three such tensors are beyond any cache.
constexpr std::int64_t kLong = std::int64_t{1} << 24;
constexpr std::int64_t kTiny = 8;
constexpr int kCallsAtOnce = 200;

// The shortest time of a call, after one that is not counted; at least two are.
Seconds shortest(Seconds time, const std::function<void()>& call) {
  call();
  Stopwatch all;
  Seconds best = Seconds::max();
  for (int runs = 0; runs < 2 || all.elapsed() < time; ++runs) {
    Stopwatch one;
    call();
    best = std::min(best, one.elapsed());
  }
  return best;
}

double product_rate(Seconds time, at::ScalarType dtype) {
  const at::Tensor a = at::ones({kSide, kSide}, dtype), b = at::ones({kSide, kSide}, dtype);
  at::Tensor c = at::ones({kSide, kSide}, dtype);
  const double flops = 2.0 * kSide * kSide * kSide;
  return flops / shortest(time, [&] { at::mm_out(c, a, b); }).count();
}

double elementwise_rate(Seconds time) {
  const at::Tensor a = at::ones({kLong}), b = at::ones({kLong});
  at::Tensor c = at::ones({kLong});
  const double bytes = 3.0 * kLong * static_cast<double>(a.itemsize());
  return bytes / shortest(time, [&] { at::add_out(c, a, b); }).count();
}

Seconds time_of_a_call(Seconds time) {
  const at::Tensor a = at::ones({kTiny});
  std::vector<double> rounds;
  Stopwatch all;
  do {
    Stopwatch one;
    for (int i = 0; i < kCallsAtOnce; ++i) at::add(a, a);
    rounds.push_back(one.elapsed().count() / kCallsAtOnce);
  } while (all.elapsed() < time);
  return Seconds(median(rounds));
}

}  // namespace

Machine calibrate(Seconds time) {
  estimate::check_not_on_meta("calibrate()");
  if (!(time.count() > 0 && std::isfinite(time.count()))) {
    throw UsageError("calibrate(): the time is " + std::to_string(time.count()) +
                     " s; it must be above zero, and finite");
  }
  const c10::NoGradGuard without_graph;
  const Seconds part = time / 4;
  Machine machine;
  machine.flops = product_rate(part, at::kFloat);
  machine.low_precision_flops = product_rate(part, at::kBFloat16);
  machine.bandwidth = elementwise_rate(part);
  machine.overhead = time_of_a_call(part);
  return machine;
}

}  // namespace reprise
