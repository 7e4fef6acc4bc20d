#include "influence/layer_runs.h"

#include <ATen/ops/alias.h>
#include <c10/core/TensorImpl.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "region/layers_case.h"

namespace reprise::influence {
namespace {

// One of the found layers: the model's layers that it is of.
using Functions = std::vector<TensorFunction>;

Functions functions_in(const detail::Layers& layers, const PgacLayer& found) {
  const auto begin = layers.functions.begin() + found.first;
  return {begin, begin + found.count};
}

// Outputs to be watched once all layers have run, so that in a region around the model a first run
// saves them in the same order as all later ones.
class Watches {
 public:
  explicit Watches(const Meter& meter) : meter_(meter) {}
  void add(std::int64_t layer, const at::Tensor& output) { outputs_.emplace_back(layer, output); }
  void make() const {
    for (const auto& [layer, output] : outputs_) meter_->watch(layer, output);
  }

 private:
  const Meter& meter_;
  std::vector<std::pair<std::int64_t, at::Tensor>> outputs_;
};

at::Tensor call(std::span<const TensorFunction> functions, at::Tensor tensor) {
  for (const TensorFunction& function : functions) tensor = function(tensor);
  return tensor;
}

// Found layers that run again together. The last one's output is the region's, which is watched
// outside: saved within, it would make each recomputation go on to the end for its sake.
class RunAgain {
 public:
  RunAgain(const detail::Layers& layers, std::span<const PgacLayer> found, std::int64_t first,
           Meter meter)
      : first_(first), meter_(std::move(meter)) {
    for (const PgacLayer& each : found) parts_.push_back(functions_in(layers, each));
  }

  at::Tensor operator()(const at::Tensor& input) const {
    at::Tensor tensor = input;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      tensor = call(parts_[i], std::move(tensor));
      // A region's own argument has a history that a recomputation must not add to.
      if (i + 1 < parts_.size() && !tensor.is_same(input)) {
        meter_->watch(first_ + static_cast<std::int64_t>(i), tensor);
      }
    }
    return tensor;
  }

 private:
  std::int64_t first_;
  Meter meter_;
  std::vector<Functions> parts_;
};

// Changes of a tensor that is not kept alive for it.
class InputChanges {
 public:
  explicit InputChanges(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()), before_(now()) {}
  bool any() const { return now() != before_; }

 private:
  std::uint32_t now() const { return counter_.enabled() ? counter_.current_version() : 0; }

  const c10::VariableVersion counter_;
  const std::uint32_t before_;
};

// Backward would refuse it, too late for a step of a training, and in a region's words.
[[noreturn]] void refuse_writing(const PgacLayer& layer) {
  throw UsageError(
      "Pgac::run: layer " + std::to_string(layer.first) + " (" + layer.name +
      ") cannot be recomputed: it, or the layer after it, has written to its input. No layer by "
      "itself did so in the first run, or in the restored state. A layer in place does so behind a "
      "layer that returns its input in evaluation mode; give each case its own Pgac");
}

}  // namespace

FoundLayers run_and_find(const detail::Layers& layers, const at::Tensor& input,
                         const Meter& meter) {
  FoundLayers found;
  Watches watches(meter);
  const std::int64_t changes_before = detail::changes_of(input);
  at::Tensor tensor = input;
  for (std::size_t i = 0; i < layers.functions.size(); ++i) {
    const std::int64_t before = detail::changes_of(tensor);
    at::Tensor result = layers.functions[i](tensor);
    const bool belongs = i > 0 && detail::belongs_to_layer_before(result, tensor, before, input);
    const std::string name = detail::short_name(layers.names[i]);
    if (belongs) {
      found.layers.back().name += " + " + name;
      ++found.layers.back().count;
    } else {
      // Only now is the output of the one before known to stay as it is.
      if (i > 0) watches.add(std::ssize(found.layers) - 1, tensor);
      found.layers.push_back({name, static_cast<std::int64_t>(i), 1});
    }
    if (found.layers.size() == 1)
      found.first_writes_input = detail::changes_of(input) != changes_before;
    tensor = std::move(result);
  }
  watches.add(std::ssize(found.layers) - 1, tensor);
  watches.make();
  found.result = std::move(tensor);
  return found;
}

at::Tensor run_masked(const detail::Layers& layers, const std::vector<PgacLayer>& found,
                      const std::vector<bool>& keep, const at::Tensor& input, const Meter& meter,
                      KeptRunner* runner) {
  Watches watches(meter);
  at::Tensor tensor = input;
  for (std::size_t i = 0; i < found.size();) {
    std::size_t end = i;
    while (end < found.size() && !keep[end]) ++end;
    const auto watch_input = [&, before = tensor] {
      if (runner != nullptr && i > 0) meter->watch(static_cast<std::int64_t>(i) - 1, before);
    };
    if (end > i) {
      watch_input();
      const auto again = std::span(found).subspan(i, end - i);
      const InputChanges changes(tensor);
      tensor = checkpoint(RunAgain(layers, again, static_cast<std::int64_t>(i), meter),
                          std::move(tensor));
      if (changes.any()) refuse_writing(found[i]);
    } else if (runner == nullptr) {
      tensor = call(functions_in(layers, found[end++]), std::move(tensor));
    } else {
      const Functions functions = functions_in(layers, found[end++]);
      const auto call_all = [functions](const at::Tensor& value) { return call(functions, value); };
      tensor = runner->run(i, call_all, watch_input, tensor);
    }
    if (runner == nullptr || end == found.size()) {
      watches.add(static_cast<std::int64_t>(end) - 1, tensor);
    }
    i = end;
  }
  watches.make();
  return tensor;
}

detail::Layers watched(detail::Layers layers, const Meter& meter) {
  for (TensorFunction& function : layers.functions) {
    function = [meter, function = std::move(function)](const at::Tensor& input) {
      at::Tensor result = function(input);
      meter->watch(0, result);
      return result;
    };
  }
  return layers;
}

detail::Layers watched_by_readers(detail::Layers layers, const Meter& meter,
                                  const std::function<std::shared_ptr<void>(std::size_t)>& around) {
  for (std::size_t i = 0; i < layers.functions.size(); ++i) {
    const bool is_last = i + 1 == layers.functions.size();
    TensorFunction& function = layers.functions[i];
    function = [meter, around, i, is_last,
                function = std::move(function)](const at::Tensor& input) {
      // A leaf is not watched, and only in the model's first place is the input one.
      const at::Tensor read = input.requires_grad() ? at::alias(input) : input;
      at::Tensor result;
      {
        const std::shared_ptr<void> scope = around(i);
        meter->watch(0, read);
        result = function(read);
      }
      if (is_last) meter->watch(0, result);
      return result;
    };
  }
  return layers;
}

}  // namespace reprise::influence
