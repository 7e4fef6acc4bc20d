// The strategies of strategy.h, one function each, and the table that names them.
#include "models/strategy.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>

namespace reprise::models {

struct Strategy::Kind {
  std::string_view name;
  std::string_view count_name;  // empty if the strategy takes no count
  at::Tensor (*run)(const Layers&, const at::Tensor&, std::int64_t count, const CheckpointOptions&);

  std::string usage() const {
    return count_name.empty() ? std::string(name) : fmt::format("{}:{}", name, count_name);
  }
};

namespace {

at::Tensor run_plainly(const Layers& layers, const at::Tensor& input, std::int64_t,
                       const CheckpointOptions&) {
  at::Tensor x = input;
  for (const Layer& layer : layers) x = layer(x);
  return x;
}

at::Tensor run_every_block(const Layers& layers, const at::Tensor& input, std::int64_t,
                           const CheckpointOptions& options) {
  at::Tensor x = input;
  for (const Layer& layer : layers) x = checkpoint(options, layer, x);
  return x;
}

at::Tensor run_segments(const Layers& layers, const at::Tensor& input, std::int64_t count,
                        const CheckpointOptions& options) {
  return checkpoint_sequential(layers, count, input, options);
}

// Segments of equal length but the last, which may be shorter. checkpoint_sequential would give the
// remainder to its last segment: 3, 3, 2 here is 2, 2, 4 there, and the longest decides the peak.
// The last is run plainly, as there: its activations would be recomputed at once.
at::Tensor run_square_root(const Layers& layers, const at::Tensor& input, std::int64_t,
                           const CheckpointOptions& options) {
  const auto length =
      static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(layers.size()))));
  at::Tensor x = input;
  for (std::size_t begin = 0; begin < layers.size(); begin += length) {
    const std::size_t end = std::min(begin + length, layers.size());
    const Layers segment(layers.begin() + begin, layers.begin() + end);
    const auto run_segment = [segment](const at::Tensor& y) {
      return run_plainly(segment, y, 0, {});
    };
    x = end < layers.size() ? checkpoint(options, run_segment, x) : run_segment(x);
  }
  return x;
}

// Region k holds layer k and, nested inside it, region k - 1; all of them are given the first
// layer's input, so that nothing else stays alive. Backward of layer k runs layers 1 to k again.
at::Tensor run_up_to(std::size_t count, std::shared_ptr<const Layers> layers,
                     const at::Tensor& input, std::shared_ptr<const CheckpointOptions> options) {
  if (count == 0) return input;
  const auto run = [count, layers, options](const at::Tensor& x) {
    return (*layers)[count - 1](run_up_to(count - 1, layers, x, options));
  };
  return checkpoint(*options, run, input);
}

at::Tensor run_from_input(const Layers& layers, const at::Tensor& input, std::int64_t,
                          const CheckpointOptions& options) {
  return run_up_to(layers.size(), std::make_shared<const Layers>(layers), input,
                   std::make_shared<const CheckpointOptions>(options));
}

}  // namespace

const Strategy::Kind Strategy::kKinds[] = {
    {"none", "", run_plainly},          {"every-block", "", run_every_block},
    {"segments", "K", run_segments},    {"sqrt", "", run_square_root},
    {"from-input", "", run_from_input},
};

std::string Strategy::choices() {
  std::string list;
  for (const Kind& kind : kKinds) list += (list.empty() ? "" : ", ") + kind.usage();
  return list;
}

Strategy Strategy::parse(std::string_view text) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  const auto kind = std::ranges::find(kKinds, name, &Kind::name);
  if (kind == std::end(kKinds)) {
    throw UsageError(fmt::format("unknown strategy '{}'; choose one of {}", text, choices()));
  }
  std::int64_t count = 0;
  if (kind->count_name.empty()) {
    if (colon != std::string_view::npos) {
      throw UsageError(fmt::format("strategy '{}' takes no number; write '{}'", text, kind->name));
    }
  } else {
    const auto digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), count);
    if (error != std::errc() || end != digits.end() || count < 1) {
      throw UsageError(fmt::format("strategy '{}' needs a number of at least 1, such as '{}:4'",
                                   text, kind->name));
    }
  }
  return Strategy(std::string(text), *kind, count);
}

void Strategy::check(std::int64_t layers) const {
  if (count_ > layers) {
    throw UsageError(
        fmt::format("strategy '{}' has more segments than the model has layers ({}); "
                    "give at most {}",
                    name_, layers, layers));
  }
}

at::Tensor Strategy::run(const Layers& layers, const at::Tensor& input,
                         const CheckpointOptions& options) const {
  check(static_cast<std::int64_t>(layers.size()));
  return kind_->run(layers, input, count_, options);
}

}  // namespace reprise::models
