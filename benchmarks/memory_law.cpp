// The laws of the literature, measured: how the peak of a step, its time and the layers it runs
// again grow with the depth L of a chain, under four ways of keeping activations.
//
//   none          every layer's activations are kept: O(L) bytes
//   sqrt          round(sqrt(L)) segments, each a region: O(sqrt(L)) bytes, one more forward
//   every-block   each layer a region: O(L) bytes, but only the layers' inputs; one more forward
//   from-input    each layer's input is computed again from the chain's input (regions nested as
//                 deep as the chain): constant bytes but for the regions' own records, O(L^2) layers
//
// Exponents are slopes of a least-squares line through log(figure) over log(L).
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <reprise/checkpoint.h>
#include <reprise/memory.h>

#include <cmath>
#include <map>
#include <memory>

#include "benches.h"
#include "benchmarks/support/race.h"

namespace reprise::bench {
namespace {

constexpr const char* kMemoryLaw = "memory_law";
// Wide in rows, so that activations outweigh the weights' gradients, and shallow enough for L =
// 256.
constexpr std::int64_t kRows = 1024;
constexpr std::int64_t kWidth = 64;

struct Point {
  double depth;
  double value;
};

double slope_of_logs(const std::vector<Point>& points) {
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const Point& point : points) {
    const double log_depth = std::log(point.depth);
    const double log_value = std::log(point.value);
    x += log_depth, y += log_value, xx += log_depth * log_depth, xy += log_depth * log_value;
  }
  const auto n = static_cast<double>(points.size());
  return (n * xy - x * y) / (n * xx - x * x);
}

// Equal layers, each gelu(x W). Counts how often a layer was run.
class DeepChain {
 public:
  DeepChain(c10::Device device, int depth)
      : input_(with_gradient(randn_on(device, {kRows, kWidth}))) {
    const double scale = 1 / std::sqrt(static_cast<double>(kWidth));
    for (int i = 0; i < depth; ++i)
      weights_.push_back(with_gradient(randn_on(device, {kWidth, kWidth}) * scale));
  }

  int depth() const { return static_cast<int>(weights_.size()); }
  const at::Tensor& input() const { return input_; }
  std::int64_t layers_run() const { return layers_run_; }

  at::Tensor layers(int from, int to, at::Tensor x) {
    for (int i = from; i < to; ++i) {
      ++layers_run_;
      x = at::gelu(x.matmul(weights_[i]));
    }
    return x;
  }

  // The same as `count` regions of equal length.
  at::Tensor in_segments(int count, at::Tensor x) {
    for (int i = 0; i < count; ++i) {
      const int from = i * depth() / count;
      const int to = (i + 1) * depth() / count;
      x = checkpoint([this, from, to](const at::Tensor& y) { return layers(from, to, y); }, x);
    }
    return x;
  }

  // The first `count` layers as a region of the region of the first count - 1 and one layer more.
  at::Tensor from_input(int count, const at::Tensor& x) {
    if (count == 0) return x;
    return checkpoint(
        [this, count](const at::Tensor& y) {
          return layers(count - 1, count, from_input(count - 1, y));
        },
        x);
  }

 private:
  // The gradient exists before the step, so that the step's bytes are activations and temporaries.
  static at::Tensor with_gradient(at::Tensor parameter) {
    parameter.set_requires_grad(true);
    parameter.mutable_grad() = at::zeros_like(parameter);
    return parameter;
  }

  at::Tensor input_;
  std::vector<at::Tensor> weights_;
  std::int64_t layers_run_ = 0;
};

struct Strategy {
  const char* name;
  int deepest;
  at::Tensor (*forward)(DeepChain&);
};

constexpr Strategy kStrategies[] = {
    {"none", 256, [](DeepChain& chain) { return chain.layers(0, chain.depth(), chain.input()); }},
    {"sqrt", 256,
     [](DeepChain& chain) {
       const auto segments = static_cast<int>(std::lround(std::sqrt(chain.depth())));
       return chain.in_segments(segments, chain.input());
     }},
    {"every-block", 256,
     [](DeepChain& chain) { return chain.in_segments(chain.depth(), chain.input()); }},
    {"from-input", 64,
     [](DeepChain& chain) { return chain.from_input(chain.depth(), chain.input()); }},
};

struct Series {
  std::vector<Point> peaks;
  std::vector<Point> layers_again;    // layers run beyond L
  std::vector<Point> extra_forwards;  // the same divided by L
  std::vector<Point> times;
};

// One figure that was counted, or is a function of figures.
void report_exact(Session& session, std::string name, double value, std::string unit,
                  const Bar& bar = {}) {
  session.report({.bench = kMemoryLaw,
                  .name = std::move(name),
                  .ours = value,
                  .peer = {},
                  .unit = std::move(unit),
                  .runs = 1,
                  .spread = 0,
                  .bar = bar});
}

void measure(Session& session, int depth, std::map<std::string, Series>& series) {
  Race race(session, kMemoryLaw, nullptr);
  for (const Strategy& strategy : kStrategies) {
    if (depth > strategy.deepest) continue;
    auto chain = std::make_shared<DeepChain>(session.device(), depth);
    const Step step = [chain, &strategy] { strategy.forward(*chain).sum().backward(); };
    step();
    const std::int64_t before = chain->layers_run();
    const PeakScope scope(session.device());
    step();
    const double peak = scope.peak_above_start().megabytes();
    const auto again = static_cast<double>(chain->layers_run() - before - depth);
    Series& ours = series[strategy.name];
    ours.peaks.push_back({double(depth), peak});
    ours.layers_again.push_back({double(depth), again});
    ours.extra_forwards.push_back({double(depth), again / depth});
    report_exact(session, fmt::format("peak, {}, L={}", strategy.name, depth), peak, "MB");
    race.add(strategy.name, step);
  }
  race.run(Seconds(3));
  for (const Strategy& strategy : kStrategies) {
    if (depth > strategy.deepest) continue;
    const Formula time = [&strategy](const Round& round) { return 1e3 * round[strategy.name]; };
    const std::string name = fmt::format("time, {}, L={}", strategy.name, depth);
    series[strategy.name].times.push_back({double(depth), race.report(name, "ms", time)});
  }
}

double farthest_from_one(const std::vector<Point>& points) {
  double farthest = 1;
  for (const Point& point : points) {
    if (std::abs(point.value - 1) > std::abs(farthest - 1)) farthest = point.value;
  }
  return farthest;
}

}  // namespace

void memory_law(Session& session) {
  std::map<std::string, Series> series;
  const int deepest = session.quick() ? 64 : 256;
  for (int depth = 4; depth <= deepest; depth *= 2) measure(session, depth, series);

  const auto exponent = [&](const std::string& what, const std::string& strategy,
                            const std::vector<Point>& points, const Bar& bar = {}) {
    report_exact(session, "exponent of " + what + ", " + strategy, slope_of_logs(points), "L^",
                 bar);
  };
  const Bar one = {.at_most = 1.05, .at_least = 0.95};
  exponent("peak", "none", series["none"].peaks, {.at_most = 1.1, .at_least = 0.9});
  exponent("peak", "sqrt", series["sqrt"].peaks, {.at_most = 0.6, .at_least = 0.4});
  exponent("peak", "every-block", series["every-block"].peaks);
  exponent("peak", "from-input", series["from-input"].peaks);
  for (const char* strategy : {"sqrt", "every-block"}) {
    report_exact(session, std::string("extra forwards, ") + strategy,
                 farthest_from_one(series[strategy].extra_forwards), "×forward", one);
  }
  const Point& longest = series["from-input"].extra_forwards.back();
  report_exact(session, fmt::format("extra forwards, from-input, L={:g}", longest.depth),
               longest.value, "×forward");
  exponent("layers run again", "from-input", series["from-input"].layers_again,
           {.at_most = 2.1, .at_least = 1.9});
  for (const char* strategy : {"none", "sqrt", "every-block"}) {
    exponent("time", strategy, series[strategy].times);
  }
  std::vector<Point> beyond_plain = series["from-input"].times;
  for (std::size_t i = 0; i < beyond_plain.size(); ++i) {
    beyond_plain[i].value -= series["none"].times[i].value;
  }
  exponent("time beyond none", "from-input", beyond_plain);
}

}  // namespace reprise::bench
