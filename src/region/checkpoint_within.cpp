// checkpoint_sequential() with a budget in bytes: each chain that is seen is measured once, and
// planned once for each budget.
#include <ATen/autocast_mode.h>
#include <reprise/checkpoint_sequential.h>
#include <reprise/error.h>
#include <reprise/plan.h>
#include <reprise/profile_chain.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libtorch/on_meta.h"

namespace reprise::detail {
namespace {

// What seconds and bytes depend on.
struct Case {
  std::vector<std::weak_ptr<const void>> modules;
  std::vector<bool> trains;
  // Of each parameter: its type, and whether it requires gradients.
  std::vector<std::pair<at::ScalarType, bool>> parameters;
  std::vector<std::int64_t> sizes, strides;
  at::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  std::optional<at::ScalarType> autocast;

  bool is_gone() const {
    return std::any_of(modules.begin(), modules.end(),
                       [](const auto& module) { return module.expired(); });
  }
  bool operator==(const Case& other) const {
    const auto is_same = [](const auto& a, const auto& b) {
      return !a.owner_before(b) && !b.owner_before(a);
    };
    return dtype == other.dtype && device == other.device && requires_grad == other.requires_grad &&
           autocast == other.autocast && sizes == other.sizes && strides == other.strides &&
           trains == other.trains && parameters == other.parameters &&
           std::equal(modules.begin(), modules.end(), other.modules.begin(), other.modules.end(),
                      is_same);
  }
};

Case case_of(const Layers& layers, const at::Tensor& input) {
  Case result{
      .modules = {layers.modules.begin(), layers.modules.end()},
      .trains = layers.trains,
      .parameters = {},
      .sizes = input.sizes().vec(),
      .strides =
          input.layout() == at::kStrided ? input.strides().vec() : std::vector<std::int64_t>(),
      .dtype = input.scalar_type(),
      .device = input.device(),
      .requires_grad = input.requires_grad(),
      .autocast = std::nullopt,
  };
  for (const at::Tensor& each : layers.parameters) {
    result.parameters.emplace_back(each.scalar_type(), each.requires_grad());
  }
  const c10::DeviceType device = input.device().type();
  if (at::autocast::is_autocast_enabled(device)) {
    result.autocast = at::autocast::get_autocast_dtype(device);
  }
  return result;
}

// Plans outlive the calls, and belong to models that this library does not own: so they are kept
// here, for as long as the models live.
class Plans {
 public:
  static Plans& instance() {
    static Plans plans;
    return plans;
  }

  std::optional<Chain> chain_of(const Case& wanted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Plan* const plan = find(wanted);
    if (plan == nullptr) return {};
    return plan->chain;
  }

  void add(const Case& made, const Chain& chain) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(plans_, [](const Plan& plan) { return plan.of.is_gone(); });
    if (find(made) != nullptr) return;  // by another thread meanwhile
    // Shapes that never come again must not fill the memory.
    if (plans_.size() >= kMost) plans_.erase(plans_.begin());
    plans_.push_back({made, chain, {}});
  }

  std::optional<Schedule> schedule_of(const Case& wanted, Bytes budget) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Plan* const plan = find(wanted);
    if (plan == nullptr) return {};
    for (const auto& [bytes, schedule] : plan->schedules) {
      if (bytes == budget) return schedule;
    }
    return {};
  }

  void add(const Case& made, Bytes budget, const Schedule& schedule) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Plan* const plan = find(made);
    if (plan == nullptr) return;
    if (plan->schedules.size() >= kMost) plan->schedules.erase(plan->schedules.begin());
    plan->schedules.emplace_back(budget, schedule);
  }

 private:
  static constexpr std::size_t kMost = 64;

  struct Plan {
    Case of;
    Chain chain;
    std::vector<std::pair<Bytes, Schedule>> schedules;
  };

  Plan* find(const Case& wanted) {
    const auto found = std::find_if(plans_.begin(), plans_.end(),
                                    [&](const Plan& plan) { return plan.of == wanted; });
    return found == plans_.end() ? nullptr : &*found;
  }

  std::mutex mutex_;
  std::vector<Plan> plans_;
};

Schedule schedule_within(const Layers& layers, Bytes budget, const at::Tensor& input) {
  const Case wanted = case_of(layers, input);
  Plans& plans = Plans::instance();
  if (std::optional<Schedule> known = plans.schedule_of(wanted, budget)) return *std::move(known);
  std::optional<Chain> chain = plans.chain_of(wanted);
  if (!chain) {
    // One at a time, for each counts the bytes of all. A layer may itself be a chain with a budget.
    static std::recursive_mutex profiling;
    const std::lock_guard<std::recursive_mutex> lock(profiling);
    chain = plans.chain_of(wanted);
    if (!chain) {
      chain = profile(layers, input, {});
      plans.add(wanted, *chain);
    }
  }
  Schedule made = planners::rotor(*chain, budget);
  plans.add(wanted, budget, made);
  return made;
}

}  // namespace

at::Tensor checkpoint_within(const Layers& layers, Bytes budget, at::Tensor input,
                             const CheckpointOptions& options) {
  check_options(options);
  if (budget <= Bytes(0)) {
    throw UsageError("checkpoint_sequential(): the budget is " + std::to_string(budget.count) +
                     " bytes; it must be at least 1");
  }
  if (!at::GradMode::is_enabled() || layers.functions.empty()) {
    return checkpoint_sequential(layers.functions, 1, std::move(input), options);
  }
  // Stages without memory take no time and no bytes, and what is measured is kept.
  if (input.is_meta() || libtorch::is_on_meta()) {
    throw UsageError(
        "checkpoint_sequential(): a budget of " + std::to_string(budget.count) +
        " bytes needs layers that are measured, and tensors without memory, as in an "
        "estimate, have nothing to measure; give it a schedule instead, planned by "
        "planners::rotor() from profile_chain() of a real input, or a number of segments");
  }
  const Schedule schedule = schedule_within(layers, budget, input);
  return checkpoint_sequential(layers.functions, schedule, std::move(input), options);
}

}  // namespace reprise::detail
