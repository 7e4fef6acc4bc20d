#include "tape/learning.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "core/clock.h"
#include "plan/step/hindsight.h"

namespace reprise {

struct LearnedPlan::Impl {
  plan::PlannedStep step;
};

LearnedPlan detail::LearnedPlanAccess::plan_of(plan::PlannedStep step) {
  return LearnedPlan(std::make_shared<LearnedPlan::Impl>(std::move(step)));
}

const std::shared_ptr<const plan::StepScript>& detail::LearnedPlanAccess::script_of(
    const LearnedPlan& plan) {
  return plan.impl_->step.script;
}

LearnedPlan LearnedPlan::read(const std::filesystem::path& file) {
  return detail::LearnedPlanAccess::plan_of(plan::read_planned_step(file));
}

LearnedPlan LearnedPlan::parse(std::string_view json, const std::string& origin) {
  return detail::LearnedPlanAccess::plan_of(plan::parse_planned_step(json, origin));
}

std::string LearnedPlan::json() const { return plan::json_of(impl_->step); }

void LearnedPlan::write(const std::filesystem::path& file) const {
  plan::write_planned_step(impl_->step, file);
}

LearnedPlan::Figures LearnedPlan::figures() const {
  return {impl_->step.limit, impl_->step.slowdown, impl_->step.bound};
}

std::uint64_t LearnedPlan::step() const { return impl_->step.script->hash(); }

std::int64_t LearnedPlan::operators() const {
  return static_cast<std::int64_t>(impl_->step.script->calls());
}

namespace tape {
namespace {

// Allocators round, and steps are not exactly alike.
constexpr double kRoom = 0.998;
// Of the time, for a first plan.
constexpr double kFirstShare = 0.05;

// What trains goes first. Without effect where that is not allowed.
void be_of_low_priority() {
  constexpr int kLowest = 19;
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kLowest);
}

}  // namespace

Learning::Learning(Bytes limit, Seconds most) : limit_(limit), most_(most) {}

Learning::~Learning() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Learning::Attention Learning::attention() const {
  const std::lock_guard lock(mutex_);
  if (!is_under_pressure_ && plans_.empty()) return Attention::kNone;
  const bool wants_notes = is_under_pressure_ && since_unknown_ < kMostWaiting;
  return wants_notes ? Attention::kNote : Attention::kFollow;
}

Learning::Script Learning::planned(std::size_t call, std::uint64_t prefix) const {
  const std::lock_guard lock(mutex_);
  for (auto plan = plans_.rbegin(); plan != plans_.rend(); ++plan) {
    const Script& script = detail::LearnedPlanAccess::script_of(*plan);
    if (call < script->calls() && script->prefixes[call] == prefix) return script;
  }
  return nullptr;
}

std::vector<LearnedPlan>::const_iterator Learning::plan_of(std::uint64_t hash) const {
  return std::find_if(plans_.begin(), plans_.end(),
                      [hash](const LearnedPlan& plan) { return plan.step() == hash; });
}

void Learning::step_ended(End end) {
  const std::lock_guard lock(mutex_);
  is_under_pressure_ = is_under_pressure_ || end.dropped_any;
  // Nothing was compared.
  if (end.calls == 0) return;
  const auto known = plan_of(end.hash);
  if (known != plans_.end()) {
    // In front of those that come less often.
    std::rotate(plans_.begin() + (known - plans_.cbegin()),
                plans_.begin() + (known - plans_.cbegin()) + 1, plans_.end());
  }
  const bool is_known = end.was_followed || known != plans_.end() || being_planned_ == end.hash ||
                        std::ranges::count(hopeless_, end.hash) != 0;
  if (is_known) {
    ++since_unknown_;
    return;
  }
  since_unknown_ = 0;
  if (waiting_ && waiting_->hash() == end.hash) {
    if (is_planning_ || to_plan_) return;
    being_planned_ = end.hash;
    // By now more is known of what it costs to run operators again.
    to_plan_ = end.record ? std::move(end.record) : std::move(waiting_);
    waiting_.reset();
    begin_search();
    return;
  }
  if (waiting_ && ++waited_ > kMostWaiting) waiting_.reset();
  if (waiting_ || !end.record || !end.dropped_any) return;
  waiting_ = std::move(end.record);
  waited_ = 0;
}

// Without a thread there is no plan, and nothing else is lost.
void Learning::begin_search() {
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { search(); });
  } catch (const std::system_error&) {
    to_plan_.reset();
    give_up(being_planned_);
    being_planned_ = 0;
  }
  changed_.notify_all();
}

void Learning::give_up(std::uint64_t hash) {
  if (hopeless_.size() == kMostPlans) hopeless_.erase(hopeless_.begin());
  hopeless_.push_back(hash);
}

void Learning::use(const LearnedPlan& plan) {
  const std::lock_guard lock(mutex_);
  keep(plan);
}

std::optional<LearnedPlan> Learning::newest() const {
  const std::lock_guard lock(mutex_);
  return plans_.empty() ? std::nullopt : std::optional(plans_.back());
}

bool Learning::wait(Seconds most) {
  std::unique_lock lock(mutex_);
  constexpr Seconds kYear{365. * 24 * 3600};
  return changed_.wait_for(lock, std::min(most, kYear),
                           [this] { return !is_planning_ && !to_plan_; });
}

// In place of one of the same step, or of the one that was followed longest ago.
void Learning::keep(const LearnedPlan& plan) {
  const auto known = plan_of(plan.step());
  if (known != plans_.end()) {
    plans_.erase(known);
  } else if (plans_.size() == kMostPlans) {
    plans_.erase(plans_.begin());
  }
  plans_.push_back(plan);
}

bool Learning::is_ending() const {
  const std::lock_guard lock(mutex_);
  return is_ending_;
}

void Learning::search() {
  be_of_low_priority();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || to_plan_; });
    if (is_ending_) return;
    const plan::StepRecord record = *std::exchange(to_plan_, std::nullopt);
    is_planning_ = true;
    lock.unlock();
    try {
      search_for(record);
    } catch (const std::bad_alloc&) {
      // As where no plan is found.
    }
    lock.lock();
    if (plan_of(record.hash()) == plans_.end()) give_up(record.hash());
    is_planning_ = false;
    being_planned_ = 0;
    changed_.notify_all();
  }
}

void Learning::search_for(const plan::StepRecord& record) {
  const auto budget = static_cast<std::int64_t>(kRoom * static_cast<double>(limit_.count));
  const plan::RecordedGraph recorded = plan::graph_of(record, budget);
  const auto base = static_cast<double>(std::max<std::int64_t>(record.nanoseconds(), 1));
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const double share : {kFirstShare, 1 - kFirstShare}) {
    const plan::Hindsight found =
        plan::plan_with_hindsight(recorded.graph, {.budget = budget,
                                                   .seconds = share * most_.count(),
                                                   .is_cancelled = [this] { return is_ending(); }});
    if (!found.plan || found.cost.recompute_nanoseconds >= least) continue;
    least = found.cost.recompute_nanoseconds;
    const LearnedPlan plan = detail::LearnedPlanAccess::plan_of(
        {.limit = limit_,
         .slowdown = 1 + static_cast<double>(least) / base,
         .bound = 1 + std::min(found.least_nanoseconds, static_cast<double>(least)) / base,
         .script =
             std::make_shared<plan::StepScript>(plan::script_of(record, recorded, *found.plan))});
    const std::lock_guard lock(mutex_);
    keep(plan);
  }
}

}  // namespace tape
}  // namespace reprise
