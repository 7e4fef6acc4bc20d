// The public interface of budgets: it checks what it is given, and asks the budget and its steps.
#include <reprise/budget.h>
#include <reprise/error.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/machine_memory.h"
#include "libtorch/memory/accelerator_device.h"
#include "libtorch/memory/managed_memory.h"
#include "libtorch/memory/memory_limit.h"
#include "libtorch/operators/operator_interceptor.h"
#include "tape/session.h"

namespace reprise {

MemoryBudget::MemoryBudget(Bytes limit, BudgetOptions options)
    : budget_(std::make_shared<tape::Budget>(limit, std::move(options))) {
  // Every operator must be seen. There those on sparse, nested and oneDNN's tensors are not, whose
  // kernels come before the key at which calls are intercepted.
  if (libtorch::operator_interceptor_variant() != "fake") {
    throw UsageError(
        "MemoryBudget: operators are intercepted above autograd in this process, which does not "
        "suffice for a byte budget; unset REPRISE_INTERCEPTOR, and load no library that takes the "
        "dispatch key Fake");
  }
}

MemoryBudget MemoryBudget::fraction_of_device(double fraction, BudgetOptions options) {
  // Not a number is refused, too.
  if (!(fraction > 0 && fraction <= 1)) {
    throw UsageError("MemoryBudget: the fraction of the device is " + std::to_string(fraction) +
                     "; it must be above 0 and at most 1");
  }
  const bool is_cpu = options.device.is_cpu();
  const auto all = static_cast<double>(
      is_cpu ? machine_memory() : libtorch::AcceleratorDevice(options.device).total());
  return MemoryBudget(Bytes(static_cast<std::int64_t>(fraction * all)), std::move(options));
}

MemoryBudget::~MemoryBudget() = default;

std::optional<LearnedPlan> MemoryBudget::plan() const { return budget_->learning.newest(); }

void MemoryBudget::use(const LearnedPlan& plan, OnOtherStep on_other) {
  const Bytes needed = plan.figures().limit;
  if (needed > budget_->limit) {
    throw UsageError("MemoryBudget: the plan was made for " + to_string(needed) + " (" +
                     std::to_string(needed.count) + " bytes), and the limit is " +
                     to_string(budget_->limit) + " (" + std::to_string(budget_->limit.count) +
                     " bytes); take a plan that was made for no more, or let the budget learn");
  }
  if (!tape::learns(budget_->options)) {
    throw UsageError(
        "MemoryBudget: a plan is of no use to a budget whose options say plan_repeated_steps = false or "
        "paranoid = true; leave plan_repeated_steps true and paranoid false");
  }
  budget_->learning.use(plan);
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  budget_->expected_step.reset();
  if (on_other == OnOtherStep::kThrow) budget_->expected_step = plan;
}

bool MemoryBudget::wait_for_plan(Seconds most) const {
  if (std::isnan(most.count())) {
    throw UsageError("MemoryBudget::wait_for_plan: the time is nan s; it must be a number");
  }
  return budget_->learning.wait(most);
}

std::optional<Bytes> MemoryBudget::least() const {
  return budget_->least.find(*budget_->heuristic);
}

Bytes MemoryBudget::limit() const { return budget_->limit; }

StepReport MemoryBudget::report() const {
  std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  if (budget_->tapes.empty()) return budget_->last;
  return tape::settled(*budget_->tapes.back());
}

MemoryBudget::Step MemoryBudget::step() { return Step(std::make_unique<tape::Session>(budget_)); }

MemoryBudget::Step::Step(std::unique_ptr<tape::Session> session) : session_(std::move(session)) {}
MemoryBudget::Step::Step(Step&&) noexcept = default;
MemoryBudget::Step::~Step() = default;
void MemoryBudget::Step::finish() {
  if (session_ == nullptr) {
    throw UsageError(
        "MemoryBudget: finish() of a step that was moved from; call it on the step that it was "
        "moved to");
  }
  session_->finish();
  session_->warn_of_idle_device();
}

struct Pin::Impl {
  libtorch::HeldMemory memory;
};

Pin::Pin(const at::Tensor& tensor) : impl_(new Impl{libtorch::HeldMemory(tensor)}) {}
Pin::~Pin() = default;

}  // namespace reprise
