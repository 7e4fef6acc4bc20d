#include "influence/layer_audit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/div.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sub.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>
#include <reprise/saved_tensor_hooks.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <new>
#include <unordered_set>
#include <utility>

#include "influence/routed_store.h"
#include "libtorch/autograd/graph_reach.h"
#include "libtorch/autograd/zero_gradients.h"
#include "libtorch/base/ambient_state.h"
#include "libtorch/base/thread_state.h"
#include "region/replay_state.h"

namespace reprise::influence {
namespace {

constexpr const char* kHasHooks = "there are hooks on tensors inside it, or it retains gradients";

bool is_measured(const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided && !gradient.is_complex();
}

// Of tensors, one after the other.
struct Squares {
  double error = 0, all = 0, fourth = 0;

  void add(const at::Tensor& exact, const at::Tensor& noisy) {
    if (!exact.defined() || !noisy.defined()) return;
    const at::Tensor difference = at::sub(noisy, exact);
    const double square = square_of(difference);
    all += square_of(exact);
    if (square == 0) return;
    error += square;
    // Fourth powers of small numbers are none.
    const double root = std::sqrt(square / static_cast<double>(difference.numel()));
    const double fourths = square_of(at::square(at::div(difference, root))) * std::pow(root, 4);
    fourth += fourths;
  }
  bool is_finite() const { return std::isfinite(error) && std::isfinite(all); }
  double relative() const { return all > 0 ? error / all : 0; }
  double carriers() const { return fourth > 0 ? error * error / fourth : 0; }
};

struct Compared {
  Squares input, parameters;
  bool tells(bool has_input) const {
    return input.is_finite() && parameters.is_finite() && input.all + parameters.all > 0 &&
           (!has_input || input.all > 0);
  }
};

}  // namespace

// How saved values are read. The graph holds it, so it holds nothing of the graph.
class AuditedRun::Reading {
 public:
  explicit Reading(const AuditSettings& settings)
      : store_(settings.store), min_bytes_(settings.min_bytes) {}

  // Values on the memory of these are read as they are.
  void leave_out(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      if (parameter.has_storage()) known_.insert(parameter.storage().unsafeGetStorageImpl());
    }
  }

  at::Tensor read(const at::Tensor& value) {
    const Compression route = route_;
    if (route == Compression::kExact) return value;
    const bool is_small = Store::cannot_park(value) != nullptr ||
                          static_cast<std::int64_t>(value.storage().nbytes()) < min_bytes_.count;
    if (is_small || !store_->takes(value.device())) return value;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* const memory = value.storage().unsafeGetStorageImpl();
    if (known_.contains(memory)) return value;
    CompressionResult became;
    at::Tensor read = store_->park_as(value, route, &became)->load();
    // What a layer saves twice it parks once.
    if (seen_.insert(memory).second) log_->add(became);
    return read;
  }

  // Until the next call: values are read as that route would give them back.
  void add_noise(Compression route) {
    log_ = std::make_shared<ParkedLog>();
    seen_.clear();
    route_ = route;
  }
  ParkedLog::Sums sums() const { return log_->sums(); }

 private:
  const std::shared_ptr<CompressedStore> store_;
  const Bytes min_bytes_;
  std::atomic<Compression> route_ = Compression::kExact;
  std::mutex mutex_;
  std::unordered_set<const c10::StorageImpl*> known_, seen_;
  std::shared_ptr<ParkedLog> log_;
};

// What backward of one layer alone starts from and ends at.
struct AuditedRun::Ends {
  at::Tensor result;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> reached;  // the parameters' gates, and the input, if it has a gradient
  bool has_input = false;
  bool has_hooks = false;

  std::vector<at::Tensor> gradients(const at::Tensor& gradient) const {
    return torch::autograd::grad({result}, reached, {gradient}, /*retain_graph=*/true,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  }
};

// One layer's function, as it is run once more within backward: from the same input, with the same
// random numbers.
class AuditedRun::Again {
 public:
  Again(TensorFunction call, const at::Tensor& input)
      : call_(std::move(call)),
        input_(input.detach()),
        version_(input_._version()),
        has_gradient_(input.requires_grad()),
        replay_(std::make_shared<region::ReplayState>(CheckpointOptions{}, at::TensorList(input))) {
  }

  at::Tensor first(const at::Tensor& input) {
    at::Tensor result;
    {
      auto state = libtorch::copy_of_current_state();
      const region::ReplayState::Recording recording(replay_, *state);
      const libtorch::ThreadStateScope in_force(std::move(state));
      result = checkpoint(call_, input);
    }
    replay_->end_forward();
    return result;
  }

  bool is_changed() const { return input_._version() != version_; }

  Ends ends(const std::shared_ptr<Reading>& reading) const {
    const libtorch::RecordingScope recording;
    Ends found;
    do {
      auto state = libtorch::copy_of_current_state();
      state->checkpointing = false;
      state->recomputing = true;
      const auto undo = std::make_shared<region::ReplayState::Undo>();
      region::ReplayState::Scope replay(*replay_, *undo, undo, *state);
      const libtorch::ThreadStateScope in_force(std::move(state));
      const libtorch::AmbientMark mark;
      try {
        found = made(reading);
      } catch (...) {
        mark.put_back();
        throw;
      }
      if (!replay.was_wrong(region::ReplayState::Scope::kToTheEnd)) break;
    } while (true);
    return found;
  }

 private:
  Ends made(const std::shared_ptr<Reading>& reading) const {
    Ends found;
    const at::Tensor input = input_.detach();
    found.has_input = has_gradient_;
    input.set_requires_grad(has_gradient_);
    const std::uint64_t since = libtorch::place_in_graph();
    {
      const SavedTensorHooksScope scope(
          [](const at::Tensor& value) { return value; },
          [reading](const at::Tensor& value) { return reading->read(value); });
      // A layer may return its input.
      found.result = at::alias(call_(input));
    }
    if (!found.result.requires_grad()) return found;
    found.has_hooks = libtorch::has_hooks_between(since, at::Tensor(), found.result);
    for (auto& [leaf, gate] : libtorch::gate_leaves(since, input, found.result)) {
      found.parameters.push_back(leaf);
      found.reached.push_back(gate);
    }
    reading->leave_out(found.parameters);
    if (has_gradient_) found.reached.push_back(input);
    return found;
  }

  const TensorFunction call_;
  const at::Tensor input_;
  const std::int64_t version_;
  const bool has_gradient_;
  const std::shared_ptr<region::ReplayState> replay_;
};

AuditedRun::AuditedRun(AuditSettings settings, std::shared_ptr<AuditFindings> findings)
    : settings_(std::move(settings)),
      findings_(std::move(findings)),
      lossy_gradients_(settings_.routes.size()) {}

namespace {

// Calls `look` once, with the gradient of the result, in a backward that makes no graph.
at::Tensor watched(const at::Tensor& result, std::function<void(const at::Tensor&)> look) {
  at::Tensor end = at::alias(result);
  const auto is_done = std::make_shared<std::atomic<bool>>(false);
  end.register_hook([is_done, look = std::move(look)](const at::Tensor& gradient) {
    // A graph that is being made would hold what is read here.
    if (c10::GradMode::is_enabled() || !gradient.defined() || is_done->exchange(true)) return;
    look(gradient);
  });
  return end;
}

}  // namespace

at::Tensor AuditedRun::run(std::size_t layer, const TensorFunction& call, const at::Tensor& input) {
  // A region around may run it again.
  if (is_recomputing()) {
    const at::Tensor result = checkpoint(call, input);
    return result.requires_grad() ? at::alias(result) : result;
  }
  const auto again = std::make_shared<Again>(call, input);
  const at::Tensor result = again->first(input);
  if (!result.requires_grad()) return result;
  findings_->expect(layer);
  return watched(result, [run = shared_from_this(), layer, again](const at::Tensor& gradient) {
    run->try_to_audit(layer, *again, gradient);
  });
}

void AuditedRun::try_to_audit(std::size_t layer, const Again& again, const at::Tensor& gradient) {
  try {
    audit(layer, again, gradient);
  } catch (const BudgetError&) {
    // The next audit may find the bytes that this one lacked.
  } catch (const c10::OutOfMemoryError&) {
  } catch (const std::bad_alloc&) {
  } catch (const std::exception& error) {
    // Reentrant regions inside, for instance, refuse it. The step itself can do without.
    findings_->fail(layer, std::string("its backward cannot be run by itself: ") +
                               std::string(error.what()).substr(0, 200));
  }
}

void AuditedRun::audit(std::size_t layer, const Again& again, const at::Tensor& gradient) {
  if (again.is_changed()) return findings_->fail(layer, "its input was changed in place");
  const auto reading = std::make_shared<Reading>(settings_);
  const Ends ends = again.ends(reading);
  // What a hook does would be done several times over.
  if (ends.has_hooks) return findings_->fail(layer, kHasHooks);
  if (ends.reached.empty()) return;
  take(layer, ends, *reading, gradient);
}

at::Tensor AuditedRun::take_lossy_gradient(std::size_t layer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(lossy_gradients_[layer], at::Tensor());
}

void AuditedRun::take(std::size_t layer, const Ends& ends, Reading& reading,
                      const at::Tensor& gradient) {
  const at::Tensor lossy_gradient = take_lossy_gradient(layer);
  const std::vector<at::Tensor> exact = ends.gradients(gradient);
  for (const at::Tensor& each : exact) {
    if (each.defined() && !is_measured(each)) {
      return findings_->fail(layer, "its gradients are sparse or complex");
    }
  }
  const auto compared = [&](const std::vector<at::Tensor>& other) {
    const at::NoGradGuard no_grad;
    Compared squares;
    for (std::size_t i = 0; i < ends.parameters.size(); ++i) {
      squares.parameters.add(exact[i], other[i]);
    }
    if (ends.has_input) squares.input.add(exact.back(), other.back());
    return squares;
  };
  const Compression route = settings_.routes[layer];
  reading.add_noise(std::max(route, Compression::kInt8));
  const Compared by_noise = compared(ends.gradients(gradient));
  const ParkedLog::Sums sums = reading.sums();
  reading.add_noise(Compression::kExact);
  // Of a step without gradients, or one whose loss was too large, nothing can be told.
  if (!by_noise.tells(ends.has_input)) return;

  LayerFindings found{.noise = sums.noise,
                      .spread = sums.spread,
                      .values = static_cast<double>(sums.values),
                      .input_error = by_noise.input.relative(),
                      .parameter_error = by_noise.parameters.error,
                      .carriers = by_noise.input.error > 0 ? by_noise.input.carriers()
                                                           : by_noise.parameters.carriers()};
  if (lossy_gradient.defined()) {
    const Compared by_gradient = compared(ends.gradients(lossy_gradient));
    Squares came;
    came.add(gradient, lossy_gradient);
    if (!by_gradient.tells(ends.has_input) || !came.is_finite()) return;
    if (came.relative() > 0) {
      found.parameter_response = by_gradient.parameters.error / came.relative();
      found.input_response = by_gradient.input.relative() / came.relative();
    }
  }
  std::vector<at::Tensor> lossy = exact;
  if (lossy_gradient.defined() || route != Compression::kExact) {
    reading.add_noise(route);
    lossy = ends.gradients(lossy_gradient.defined() ? lossy_gradient : gradient);
    reading.add_noise(Compression::kExact);
    if (ends.has_input && layer > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lossy_gradients_[layer - 1] = lossy.back();
    }
  }
  const at::NoGradGuard no_grad;
  findings_->add_gradients(layer, ends.parameters, exact, lossy);
  findings_->add(layer, found);
}

at::Tensor run_inspected(std::size_t layer, const TensorFunction& call, const at::Tensor& input,
                         std::shared_ptr<AuditFindings> findings) {
  const bool has_input = input.requires_grad();
  const std::uint64_t since = libtorch::place_in_graph();
  const at::Tensor begin = has_input ? at::alias(input) : input;
  const at::Tensor result = call(begin);
  if (!result.requires_grad()) return result;
  findings->expect(layer);
  return watched(result, [since, layer, findings = std::move(findings),
                          begin = has_input ? begin : at::Tensor(),
                          result = std::make_shared<at::Tensor>(result)](const at::Tensor&) {
    if (libtorch::has_hooks_between(since, begin, *result)) findings->fail(layer, kHasHooks);
    result->reset();
  });
}

}  // namespace reprise::influence
