#include "influence/gradient_probe.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>
#include <c10/core/GradMode.h>
#include <reprise/saved_tensor_hooks.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "influence/routed_store.h"
#include "libtorch/graph_reach.h"
#include "libtorch/zero_gradients.h"

namespace reprise::influence {
namespace {

// How saved values are read. The graph holds it, so it holds nothing of the graph.
class Reading {
 public:
  explicit Reading(ProbeSettings settings) : settings_(std::move(settings)) {}

  const ProbeSettings& settings() const { return settings_; }

  // Values on the memory of these are read as they are.
  void leave_out(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      if (parameter.has_storage()) known_.insert(parameter.storage().unsafeGetStorageImpl());
    }
  }

  at::Tensor read(const at::Tensor& value) {
    if (!with_noise_) return value;
    const bool is_small =
        Store::cannot_park(value) != nullptr ||
        static_cast<std::int64_t>(value.storage().nbytes()) < settings_.minimum.count;
    if (is_small || !settings_.store->takes(value.device())) return value;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* const memory = value.storage().unsafeGetStorageImpl();
    if (known_.contains(memory)) return value;
    CompressedAs became;
    at::Tensor read = settings_.store->park_as(value, settings_.route, &became)->load();
    // What a layer saves twice it parks once.
    if (seen_.insert(memory).second) log_.add(became);
    return read;
  }

  ParkedLog::Sums sums() const { return log_.sums(); }

  class WithNoise {
   public:
    explicit WithNoise(Reading& reading) : reading_(reading) { reading_.with_noise_ = true; }
    ~WithNoise() { reading_.with_noise_ = false; }
    WithNoise(const WithNoise&) = delete;
    WithNoise& operator=(const WithNoise&) = delete;

   private:
    Reading& reading_;
  };

 private:
  const ProbeSettings settings_;
  std::atomic<bool> with_noise_ = false;
  std::mutex mutex_;
  std::unordered_set<const c10::StorageImpl*> known_, seen_;
  ParkedLog log_;
};

// What backward of one layer alone starts from and ends at.
struct Ends {
  at::Tensor result;
  std::uint64_t since = 0;  // the place in the graph where the layer began
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> reached;  // the parameters' gates, and the input, if it has a gradient
  bool has_input = false;
};

std::vector<at::Tensor> gradients(const Ends& ends, const at::Tensor& gradient) {
  return torch::autograd::grad({ends.result}, ends.reached, {gradient}, /*retain_graph=*/true,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

double square_of(const at::Tensor& tensor) {
  const double norm = at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble).item<double>();
  return norm * norm;
}

struct Squares {
  double error = 0, all = 0;
  void add(const at::Tensor& exact, const at::Tensor& noisy) {
    if (!exact.defined() || !noisy.defined() || exact.layout() != at::kStrided ||
        exact.is_complex()) {
      return;
    }
    error += square_of(at::sub(noisy, exact));
    all += square_of(exact);
  }
  bool is_finite() const { return std::isfinite(error) && std::isfinite(all); }
};

void probe(Reading& reading, const Ends& ends, const at::Tensor& gradient) {
  const std::vector<at::Tensor> exact = gradients(ends, gradient);
  std::vector<at::Tensor> noisy;
  {
    const Reading::WithNoise scope(reading);
    noisy = gradients(ends, gradient);
  }
  const at::NoGradGuard no_grad;
  Squares input, parameters;
  const std::size_t count = exact.size() - (ends.has_input ? 1 : 0);
  for (std::size_t i = 0; i < count; ++i) parameters.add(exact[i], noisy[i]);
  if (ends.has_input) input.add(exact.back(), noisy.back());
  // Of a step without gradients, or one whose loss was too large, nothing can be told.
  if (!input.is_finite() || !parameters.is_finite() || input.all + parameters.all == 0 ||
      (ends.has_input && input.all == 0)) {
    return;
  }
  const ParkedLog::Sums sums = reading.sums();
  reading.settings().report({.noise = sums.noise,
                             .spread = sums.spread,
                             .values = static_cast<double>(sums.values),
                             .input_error = ends.has_input ? input.error / input.all : 0,
                             .parameter_error = parameters.error,
                             .parameters = ends.parameters});
}

void report_failure(const Reading& reading) {
  ProbeFindings failed;
  failed.has_failed = true;
  reading.settings().report(failed);
}

void try_to_probe(Reading& reading, const Ends& ends, const at::Tensor& gradient) {
  const at::Tensor begin = ends.has_input ? ends.reached.back() : at::Tensor();
  // What a hook does would be done three times over.
  if (libtorch::has_hooks_between(ends.since, begin, ends.result)) return report_failure(reading);
  try {
    probe(reading, ends, gradient);
  } catch (const std::exception&) {
    // Reentrant regions inside, for instance, refuse it. The step itself can do without.
    report_failure(reading);
  }
}

}  // namespace

at::Tensor run_probed(const TensorFunction& layer, const at::Tensor& input,
                      ProbeSettings settings) {
  const auto reading = std::make_shared<Reading>(std::move(settings));
  // The ends of the layer are tensors of its own, so that no hook on others is called when its
  // gradients are made once more.
  const bool has_input = input.requires_grad();
  const std::uint64_t since = libtorch::place_in_graph();
  const at::Tensor begin = has_input ? at::alias(input) : input;
  auto ends = std::make_shared<std::optional<Ends>>();
  at::Tensor result;
  {
    const SavedTensorHooks scope(
        [](const at::Tensor& value) { return value; },
        [reading](const at::Tensor& value) { return reading->read(value); });
    result = layer(begin);
  }
  if (!result.requires_grad()) return result;
  Ends found;
  found.result = result;
  found.since = since;
  found.has_input = has_input;
  for (auto& [leaf, gate] : libtorch::gate_leaves(since, begin, result)) {
    found.parameters.push_back(leaf);
    found.reached.push_back(gate);
  }
  reading->leave_out(found.parameters);
  if (has_input) found.reached.push_back(begin);
  if (found.reached.empty()) return result;
  *ends = std::move(found);
  at::Tensor end = at::alias(result);
  const auto mutex = std::make_shared<std::mutex>();
  end.register_hook([reading, ends, mutex](const at::Tensor& gradient) {
    // A graph that is being made would hold what is read here.
    if (c10::GradMode::is_enabled() || !gradient.defined()) return;
    std::optional<Ends> mine;
    {
      const std::lock_guard<std::mutex> lock(*mutex);
      mine = std::exchange(*ends, std::nullopt);
    }
    if (mine) try_to_probe(*reading, *mine, gradient);
  });
  return end;
}

}  // namespace reprise::influence
