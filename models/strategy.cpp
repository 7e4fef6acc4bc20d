// The strategies of strategy.h, one function each, and the table that names them.
#include "models/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>
#include <reprise/offload.h>
#include <reprise/selective.h>
#include <reprise/store.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>

namespace reprise::models {

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

namespace {

at::Tensor run_segments(const Layers& layers, const at::Tensor& input, std::int64_t segments,
                        const CheckpointOptions& options) {
  return checkpoint_sequential(layers, segments, input, options);
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

// What one text alone stands for.
std::function<std::optional<Method>(std::string_view)> always(RunLayers run) {
  return [run](std::string_view) { return Method{.run = run}; };
}

std::optional<Method> read_segments(std::string_view digits) {
  std::int64_t count = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, count);
  if (error != std::errc() || stop != end || count < 1) {
    const bool has_digits = !digits.empty();
    throw UsageError(
        fmt::format("strategy 'segments{}{}' needs a number of at least 1, such as 'segments:4'",
                    has_digits ? ":" : "", digits));
  }
  return Method{.run = run_segments, .segments = count};
}

// Every layer a region that keeps what a named policy says.
std::optional<Method> read_selective(std::string_view name) {
  struct Named {
    std::string_view name;
    OperatorPolicy (*policy)();
  };
  static constexpr Named kPolicies[] = {{"matmul", save_matmuls},
                                        {"all-but-cheap", save_all_but_cheap},
                                        {"recompute-attention", recompute_attention}};
  const auto* const found = std::ranges::find(kPolicies, name, &Named::name);
  if (found == std::end(kPolicies)) return std::nullopt;
  return Method{.run = run_every_block,
                .set_options = [context = selective(found->policy())](CheckpointOptions& options) {
                  options.context = context;
                }};
}

// No regions: what autograd saves goes to a store, made on the device of the run.
Method offloading_to(std::function<std::shared_ptr<Store>(c10::Device)> make_store) {
  return {.prepare = [make = std::move(make_store)](Method& method, c10::Device device) {
    method.around_forward = [store = make(device)]() -> ContextScope {
      return std::make_shared<OffloadScope>(store);
    };
  }};
}

std::optional<Method> read_offload(std::string_view parameter) {
  constexpr std::string_view kDisk = "disk=";
  if (parameter == "host") {
    return offloading_to([](c10::Device device) {
      if (device.is_cpu()) {
        throw UsageError(
            "strategy 'offload:host' moves activations from an accelerator to host memory, and the "
            "device is the CPU; use 'offload:disk=DIR', or --device with an accelerator");
      }
      return host_store();
    });
  }
  if (!parameter.starts_with(kDisk)) return std::nullopt;
  const std::string folder(parameter.substr(kDisk.size()));
  if (folder.empty()) {
    throw UsageError("strategy 'offload:disk=' needs a folder, such as 'offload:disk=/scratch'");
  }
  return offloading_to([folder](c10::Device device) {
    if (!device.is_cpu()) {
      throw UsageError(fmt::format(
          "strategy 'offload:disk={}' takes activations in host memory, and the device is {}; use "
          "'offload:host'",
          folder, device.str()));
    }
    return disk_store({.folder = folder});
  });
}

std::vector<std::string> usages(const StrategyKind& kind) {
  if (kind.parameters.empty()) return {std::string(kind.name)};
  std::vector<std::string> all;
  for (const auto& parameter : kind.parameters) {
    all.push_back(fmt::format("{}:{}", kind.name, parameter));
  }
  return all;
}

[[noreturn]] void refuse(std::string_view text, const std::vector<std::string>& choices) {
  throw UsageError(
      fmt::format("unknown strategy '{}'; choose one of {}", text, fmt::join(choices, ", ")));
}

}  // namespace

std::span<const StrategyKind> strategy_kinds() {
  static const std::vector<StrategyKind> kinds = {
      {"none", {}, always(run_plainly)},
      {"every-block", {}, always(run_every_block)},
      {"segments", {"K"}, read_segments},
      {"sqrt", {}, always(run_square_root)},
      {"from-input", {}, always(run_from_input)},
      {"selective", {"matmul", "all-but-cheap", "recompute-attention"}, read_selective},
      {"offload", {"disk=DIR", "host"}, read_offload},
  };
  return kinds;
}

std::vector<std::string> Strategy::choices(std::span<const StrategyKind> kinds) {
  std::vector<std::string> all;
  for (const StrategyKind& kind : kinds) {
    for (std::string& usage : usages(kind)) all.push_back(std::move(usage));
  }
  return all;
}

Strategy Strategy::parse(std::string_view text, std::span<const StrategyKind> kinds) {
  const auto colon = std::min(text.find(':'), text.size());
  const auto kind = std::ranges::find(kinds, text.substr(0, colon), &StrategyKind::name);
  if (kind == kinds.end()) refuse(text, choices(kinds));
  if (kind->parameters.empty() && colon < text.size()) {
    throw UsageError(fmt::format("strategy '{}' takes no parameter; write '{}'", text, kind->name));
  }
  auto method = kind->read(text.substr(std::min(colon + 1, text.size())));
  if (!method) refuse(text, usages(*kind));
  return Strategy(std::string(text), *std::move(method));
}

void Strategy::check(std::int64_t layers, const CheckpointOptions& options) const {
  if (method_.segments > layers) {
    throw UsageError(
        fmt::format("strategy '{}' has more segments than the model has layers ({}); "
                    "give at most {}",
                    name_, layers, layers));
  }
  if (!method_.set_options) return;
  CheckpointOptions changed = options;
  method_.set_options(changed);
  if (options.reentrant && changed.context) {
    throw UsageError(
        fmt::format("strategy '{}' works in non-reentrant regions only; leave out --reentrant or "
                    "choose another strategy",
                    name_));
  }
}

void Strategy::prepare(c10::Device device) {
  if (!method_.prepare) return;
  Method prepared = method_;
  prepared.prepare = nullptr;
  method_.prepare(prepared, device);
  method_ = std::move(prepared);
}

void Strategy::require_prepared() const {
  if (!method_.prepare) return;
  throw UsageError(
      fmt::format("strategy '{}' has opened nothing yet; call prepare(device) before its first "
                  "step",
                  name_));
}

ContextScope Strategy::around_forward() const {
  require_prepared();
  return method_.around_forward ? method_.around_forward() : nullptr;
}

at::Tensor Strategy::run(const Layers& layers, const at::Tensor& input,
                         const CheckpointOptions& options) const {
  require_prepared();
  check(static_cast<std::int64_t>(layers.size()), options);
  if (!method_.set_options) return method_.run(layers, input, method_.segments, options);
  CheckpointOptions changed = options;
  method_.set_options(changed);
  return method_.run(layers, input, method_.segments, changed);
}

}  // namespace reprise::models
