// Chooses the slots, and among the table's schedules the fastest that keeps to the budget in bytes.
#include <reprise/error.h>
#include <reprise/planners.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "plan/chain/chain_walk.h"
#include "plan/chain/revolve.h"
#include "plan/chain/rotor_table.h"
#include "plan/chain/schedule_builder.h"

namespace reprise::planners {
namespace {

// The table's cells times what each costs, and its bytes: about a second and a quarter of a
// gigabyte.
constexpr double kMostWork = 3.3e9;
constexpr double kMostCells = 32e6;
constexpr std::int64_t kMostSlots = 20000;
constexpr std::int64_t kFewestSlots = 100;

std::int64_t affordable_slots(std::int64_t stages) {
  const auto l = static_cast<double>(stages);
  const double by_work = kMostWork / (l * l * l / 6);
  const double by_cells = kMostCells / (l * l / 2);
  return std::clamp(static_cast<std::int64_t>(std::min(by_work, by_cells)), kFewestSlots,
                    kMostSlots);
}

// One more for every eight stages, for what rounding adds to the plain step. Refuses tables that no
// machine has room for.
std::int64_t table_slots(std::int64_t slots, std::int64_t stages) {
  constexpr double kMostBytes = 4.0 * (1 << 30);
  const std::int64_t all = slots + 1 + stages / 8;
  const auto l = static_cast<double>(stages);
  const double bytes = l * (l + 1) / 2 * static_cast<double>(all) * 2 * sizeof(float);
  if (bytes > kMostBytes) {
    throw UsageError("rotor: " + std::to_string(stages) + " stages at " + std::to_string(slots) +
                     " slots need tables of " +
                     to_string(Bytes(static_cast<std::int64_t>(std::min(bytes, 9e18)))) +
                     "; the most is 4 GiB: join stages, or ask for fewer slots");
  }
  return all;
}

// The schedule's peak; nothing if it is over the budget.
std::optional<Bytes> peak_within(const Chain& chain, const Schedule& schedule,
                                 const TransferRate& store, Bytes budget) {
  plan::ChainWalk walk(chain, store);
  for (const ScheduleOp& op : schedule.ops) {
    walk.apply(op);
    if (walk.cost().peak > budget) return {};
  }
  return walk.cost().peak;
}

}  // namespace

class Rotor::Impl {
 public:
  Impl(const Chain& chain, const RotorOptions& options, Bytes most)
      : chain_(checked(chain)),
        options_(checked(options)),
        plain_peak_(std::max(evaluate(chain, keep_all(chain)).peak, Bytes(1))),
        most_(std::clamp(most, Bytes(1), plain_peak_)),
        slots_(slots_of()),
        slot_((most_.count + slots_ - 1) / slots_),
        table_(chain_, table_slots(slots_, std::ssize(chain.stages)), slot_, options.store) {}

  // Nothing if all that is found needs more.
  std::optional<Schedule> find(Bytes budget) const {
    std::optional<Schedule> found = best_simple(budget);
    const auto time = [this](const Schedule& schedule) {
      return evaluate(chain_, schedule, options_.store).time;
    };
    const auto take = [&](Schedule schedule) {
      if (!peak_within(chain_, schedule, options_.store, budget)) return false;
      if (!found || time(schedule) < time(*found)) found = std::move(schedule);
      return true;
    };
    // Rounding seldom moves a peak by as much as a slot for every fourth stage.
    const std::int64_t rounding = 2 + std::ssize(chain_.stages) / 4;
    const std::int64_t most = budget.count / slot_.count;
    each_schedule(most < table_.slots() ? most + rounding : table_.slots(), take);
    if (!found) each_schedule(table_.slots(), take);
    return found;
  }

  Schedule plan(Bytes budget) const {
    if (std::optional<Schedule> found = find(budget)) return *std::move(found);
    // What is made for a small budget alone knows no schedules that need more.
    if (most_ == plain_peak_) plan::refuse_budget("rotor", budget, least());
    return Impl(chain_, options_, kUnlimited).plan(budget);
  }

  Bytes least() const {
    Bytes least = kUnlimited;
    for (const Simple& each : simple_) least = std::min(least, each.cost.peak);
    each_schedule(table_.slots(), [&](const Schedule& schedule) {
      least = std::min(least, evaluate(chain_, schedule, options_.store).peak);
      return false;
    });
    return least;
  }

 private:
  static const Chain& checked(const Chain& chain) {
    chain.check();
    return chain;
  }
  static const RotorOptions& checked(const RotorOptions& options) {
    const double rate = options.store.bytes_per_second;
    if (options.slots < 0) {
      throw UsageError("rotor: slots is " + std::to_string(options.slots) +
                       "; give at least 1, or 0 for as many as can be solved in about a second");
    }
    if (!std::isfinite(rate) || rate < 0) {
      throw UsageError("rotor: the store's rate is " + std::to_string(rate) +
                       " bytes a second; it must be finite, and at least 0");
    }
    return options;
  }
  // What rounding to slots may miss by a hair: uniform(), and plan::revolve_checkpoints().
  struct Simple {
    bool is_uniform;
    std::int64_t count;  // segments, or checkpoints
    ScheduleCost cost;
  };
  Schedule schedule_of(bool is_uniform, std::int64_t count) const {
    return is_uniform ? uniform(chain_, count) : plan::revolve_checkpoints(chain_, count);
  }
  std::vector<Simple> simple_schedules() const {
    std::vector<Simple> all;
    for (std::int64_t k = 1; k <= std::ssize(chain_.stages); ++k) {
      for (const bool is_uniform : {true, false}) {
        all.push_back({is_uniform, k, evaluate(chain_, schedule_of(is_uniform, k))});
      }
    }
    return all;
  }
  std::optional<Schedule> best_simple(Bytes budget) const {
    const Simple* best = nullptr;
    for (const Simple& each : simple_) {
      if (each.cost.peak > budget) continue;
      if (best == nullptr || each.cost.time < best->cost.time) best = &each;
    }
    if (best == nullptr) return {};
    return schedule_of(best->is_uniform, best->count);
  }

  std::int64_t slots_of() const {
    const std::int64_t most =
        options_.slots > 0 ? options_.slots : affordable_slots(std::ssize(chain_.stages));
    return std::min(most_.count, most);
  }

  // From the fastest to the slowest within that many slots, each with the fewest slots for its
  // time, until `use` has enough.
  template <class F>
  void each_schedule(std::int64_t slots, F&& use) const {
    slots = std::clamp<std::int64_t>(slots, 0, table_.slots());
    while (slots >= 0 && std::isfinite(table_.overhead(slots))) {
      const float overhead = table_.overhead(slots);
      while (slots > 0 && table_.overhead(slots - 1) == overhead) --slots;
      if (use(table_.schedule(slots))) return;
      --slots;
    }
  }

  const Chain chain_;
  const RotorOptions options_;
  const Bytes plain_peak_;
  const Bytes most_;  // that is planned for
  const std::int64_t slots_;
  const Bytes slot_;
  const plan::RotorTable table_;
  const std::vector<Simple> simple_ = simple_schedules();
};

Rotor::Rotor(const Chain& chain, const RotorOptions& options, Bytes most)
    : impl_(std::make_unique<Impl>(chain, options, most)) {}
Rotor::~Rotor() = default;
Rotor::Rotor(Rotor&&) noexcept = default;
Rotor& Rotor::operator=(Rotor&&) noexcept = default;
Schedule Rotor::plan(Bytes budget) const { return impl_->plan(budget); }
Bytes Rotor::least() const { return impl_->least(); }

Schedule rotor(const Chain& chain, Bytes budget, const RotorOptions& options) {
  return Rotor(chain, options, budget).plan(budget);
}

Schedule rotor_offload(const Chain& chain, Bytes budget, const TransferRate& store) {
  return rotor(chain, budget, {.slots = 0, .store = store});
}

}  // namespace reprise::planners
