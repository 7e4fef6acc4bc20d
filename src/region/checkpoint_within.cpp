// checkpoint_sequential() with a budget in bytes: each chain that is seen is measured once, and
// planned once for each budget.
#include <reprise/error.h>
#include <reprise/planners.h>
#include <reprise/sequential.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libtorch/meta/on_meta.h"
#include "region/layers_case.h"

namespace reprise::detail {
namespace {

// Plans outlive the calls, and belong to models that this library does not own: so they are kept
// here, for as long as the models live.
class Plans {
 public:
  static Plans& instance() {
    static Plans plans;
    return plans;
  }

  std::optional<Chain> chain_of(const LayersCase& wanted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Plan* const plan = find(wanted);
    if (plan == nullptr) return {};
    return plan->chain;
  }

  void add(const LayersCase& made, const Chain& chain) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(plans_, [](const Plan& plan) { return plan.of.is_gone(); });
    if (find(made) != nullptr) return;  // by another thread meanwhile
    // Shapes that never come again must not fill the memory.
    if (plans_.size() >= kMost) plans_.erase(plans_.begin());
    plans_.push_back({made, chain, {}});
  }

  std::optional<Schedule> schedule_of(const LayersCase& wanted, Bytes budget) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Plan* const plan = find(wanted);
    if (plan == nullptr) return {};
    for (const auto& [bytes, schedule] : plan->schedules) {
      if (bytes == budget) return schedule;
    }
    return {};
  }

  void add(const LayersCase& made, Bytes budget, const Schedule& schedule) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Plan* const plan = find(made);
    if (plan == nullptr) return;
    if (plan->schedules.size() >= kMost) plan->schedules.erase(plan->schedules.begin());
    plan->schedules.emplace_back(budget, schedule);
  }

 private:
  static constexpr std::size_t kMost = 64;

  struct Plan {
    LayersCase of;
    Chain chain;
    std::vector<std::pair<Bytes, Schedule>> schedules;
  };

  Plan* find(const LayersCase& wanted) {
    const auto found = std::find_if(plans_.begin(), plans_.end(),
                                    [&](const Plan& plan) { return plan.of == wanted; });
    return found == plans_.end() ? nullptr : &*found;
  }

  std::mutex mutex_;
  std::vector<Plan> plans_;
};

Schedule schedule_within(const Layers& layers, Bytes budget, const at::Tensor& input) {
  const LayersCase wanted = layers_case(layers, input);
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
        " bytes needs measured layers, and tensors without memory, as in an estimate, have nothing "
        "to measure; give it a schedule instead, planned by planners::rotor() from profile_chain() "
        "of a real input, or a number of segments");
  }
  const Schedule schedule = schedule_within(layers, budget, input);
  return checkpoint_sequential(layers.functions, schedule, std::move(input), options);
}

}  // namespace reprise::detail
