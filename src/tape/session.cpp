// Budgets and steps: reprise/memory_budget.h.
#include "tape/session.h"

#include <c10/util/Exception.h>
#include <reprise/error.h>
#include <reprise/memory.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "tape/own_time.h"

namespace reprise::tape {
namespace {

// Of the steps under way, of all budgets: what one step made may have to go for another on the same
// device.
std::vector<Tape*>& open_tapes() {
  static auto* tapes = new std::vector<Tape*>;
  return *tapes;
}

auto open_tapes_on(c10::Device device) {
  return open_tapes() |
         std::views::filter([device](const Tape* tape) { return tape->device() == device; });
}

bool drop_one_on(c10::Device device) {
  auto tapes = open_tapes_on(device);
  return std::ranges::any_of(tapes, [](Tape* tape) { return tape->drop_one(); });
}

bool drop_bits_on(c10::Device device) {
  auto tapes = open_tapes_on(device);
  return std::ranges::any_of(tapes, [](Tape* tape) { return tape->drop_bits(); });
}

// What was given to stores may not have arrived.
void flush_stores_on(c10::Device device, StepReport& waiting) {
  for (const Tape* tape : open_tapes_on(device)) {
    if (tape->parking() != nullptr) tape->parking()->flush(waiting.transfer_seconds);
  }
}

// As to_string(), and never less than there is: what a text asks for has to suffice.
std::string rounded_up(Bytes bytes) {
  const std::string text = to_string(bytes);
  if (parse_bytes(text) >= bytes) return text;
  const Bytes half_of_last_place = parse_bytes("0.05" + text.substr(text.find(' ')));
  return to_string(bytes + half_of_last_place);
}

// malloc may hand out more than it is asked for, and that is what counts: the rest of a chunk, or
// of a page where it maps memory of its own.
Bytes most_handed_out(Bytes wanted) {
  constexpr std::int64_t kMaps = 128 << 10, kRestOfChunk = 64, kRestOfPage = 4096 + 128;
  return wanted + Bytes(wanted.count < kMaps ? kRestOfChunk : kRestOfPage);
}

// Why `wanted` more bytes are not to be had, and what would do.
std::string text_of_refusal(Bytes limit, Bytes live, Bytes wanted, const Tape::Undroppable& kept) {
  const std::string who = Recorder::current_operator();
  // Schemas' names have a namespace.
  const bool is_operator = who.find("::") != std::string::npos;
  const std::int64_t others = live.count - kept.roots - kept.pinned - kept.small;
  const Bytes needed = live + most_handed_out(wanted);
  return "memory budget of " + to_string(limit) + ": " + who + " asks for " + to_string(wanted) +
         ", and " + to_string(live) +
         " are live that cannot be dropped now: " + to_string(Bytes(kept.roots)) +
         " that no operator of the step made (parameters, gradients, inputs, buffers), " +
         to_string(Bytes(kept.pinned)) +
         (is_operator ? " in use by this operator or pinned, " : " in use or pinned, ") +
         to_string(Bytes(kept.small)) + " in tensors too small to drop, " +
         to_string(Bytes(others)) + " of temporaries and of what is not the step's. With " +
         rounded_up(needed) + " (" + std::to_string(needed.count) + " bytes) " +
         "this allocation would have fitted, and " +
         (is_operator ? "this operator or later ones" : "later ones") +
         " may need more; raise the budget, or make the batch smaller";
}

}  // namespace

Budget::Budget(Bytes most, BudgetOptions chosen)
    : LimitKeeper(most.count),
      limit(most),
      options(std::move(chosen)),
      heuristic(plan::heuristic_named(options.heuristic)),
      costs(learns(options)),
      learning(most, options.planning) {
  if (limit.count <= 0) {
    throw UsageError("MemoryBudget: the limit is " + std::to_string(limit.count) +
                     " bytes; it must be above 0");
  }
  if (!(options.planning.count() > 0 && std::isfinite(options.planning.count()))) {
    throw UsageError("MemoryBudget: the time for planning is " +
                     std::to_string(options.planning.count()) +
                     " s; it must be above 0, and finite (learn = false plans nothing)");
  }
  if (!options.device.is_cpu()) accelerator.emplace(options.device);
  if (options.store != nullptr) parking.emplace(options.store, device());
}

c10::Device Budget::device() const {
  return accelerator ? accelerator->device.device() : c10::Device(c10::kCPU);
}

std::int64_t Budget::taken() const {
  if (!accelerator) return live_bytes().count;
  std::int64_t bytes = accelerator->device.live();
  for (const Tape* tape : open_tapes_on(device())) bytes += tape->device_side()->promised;
  return bytes;
}

// Whether that suffices. Bytes on their way to the store are free when they have arrived.
bool Budget::wait_for_store(std::int64_t wanted) {
  if (!parking || taken() - parking->waiting() + wanted > limit.count) return false;
  parking->flush(waiting_step().transfer_seconds);
  return taken() + wanted <= limit.count;
}

// The step that this thread works for; of other threads' allocations the one that began last.
StepReport& Budget::waiting_step() {
  const auto mine = std::ranges::find(tapes, Recorder::current_tape());
  return (mine != tapes.end() ? *mine : tapes.back())->report;
}

libtorch::LimitKeeper::Room Budget::make_room(std::int64_t wanted, bool is_guess) {
  if (taken() + wanted <= limit.count) return Room::kMade;
  const OwnTime own;
  const auto drops = [](Tape* tape) { return tape->drop_one(); };
  bool has_waited = false;
  while (taken() + wanted > limit.count) {
    if (wait_for_store(wanted)) return Room::kMade;
    if (std::ranges::any_of(tapes, drops) || drop_one_on(device())) continue;
    // What other budgets' values went to may not have arrived either.
    if (!std::exchange(has_waited, true)) {
      flush_stores_on(device(), waiting_step());
      continue;
    }
    if (drop_bits_on(device())) continue;
    // Operators under way may have taken already what they were promised.
    if (is_guess || (accelerator && taken() > accelerator->device.live())) return Room::kExceeded;
    const Bytes live(taken());
    Tape::Undroppable kept;
    for (const Tape* tape : open_tapes_on(device())) {
      const Tape::Undroppable more = tape->undroppable();
      kept.roots += more.roots;
      kept.pinned += more.pinned;
      kept.small += more.small;
    }
    const std::string text = text_of_refusal(limit, live, Bytes(wanted), kept);
    if (options.on_exceeded == OnExceeded::kThrow) throw BudgetError(text);
    if (!std::exchange(warned, true)) TORCH_WARN(text);
    return Room::kExceeded;
  }
  return Room::kMade;
}

namespace {

// Those with a step under way on the device.
std::vector<Budget*>& open_budgets() {
  static auto* budgets = new std::vector<Budget*>;
  return *budgets;
}

}  // namespace

void make_room_on(c10::Device device, std::int64_t wanted, bool is_guess) {
  for (Budget* budget : open_budgets()) {
    if (budget->device() == device) budget->make_room(wanted, is_guess);
  }
}

bool give_up_on(c10::Device device, std::int64_t bytes) {
  const libtorch::AcceleratorDevice on(device);
  const std::int64_t before = on.live();
  bool has_dropped = false;
  while (before - on.live() < bytes && drop_one_on(device)) has_dropped = true;
  for (Tape* tape : open_tapes_on(device)) {
    if (tape->parking() != nullptr) tape->parking()->flush(tape->report.transfer_seconds);
  }
  on.empty_cache();
  return has_dropped;
}

namespace {

// Where steps overlap, what one of them takes is nothing to count on. Under the lock.
Learning* learning_of(Budget& budget) {
  return learns(budget.options) && budget.tapes.empty() ? &budget.learning : nullptr;
}

std::string text_of_other_step(std::int64_t planned, std::size_t calls, std::int64_t followed) {
  return "memory budget: the plan is of another step: it has " + std::to_string(planned) +
         " operators, and this step had " + std::to_string(calls) + ", of which the first " +
         std::to_string(followed) +
         " were the plan's. Make a plan with the same model, shapes and options, use() it when the "
         "first step is over (an optimizer makes its state there), or use() it with "
         "OnOtherStep::kLearn";
}

}  // namespace

Session::Session(std::shared_ptr<Budget> budget)
    : budget_(std::move(budget)), peak_(std::make_unique<PeakScope>(budget_->device())) {
  // Somebody else's: without the lock.
  std::unique_ptr<ValueWeights::Step> weights;
  if (budget_->options.weights != nullptr) weights = budget_->options.weights->step();
  {
    std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
    budget_->warned = false;
    if (budget_->tapes.empty()) budget_->forms.renew();
    Learning* const learning = learning_of(*budget_);
    if (learning != nullptr) expected_ = std::exchange(budget_->expected_step, std::nullopt);
    recorder_ = std::make_shared<Recorder>(
        budget_, budget_->options, *budget_->heuristic, budget_->forms,
        Tape::Parts{.costs = budget_->costs,
                    .parking = budget_->parking ? &*budget_->parking : nullptr,
                    .accelerator = budget_->accelerator ? &*budget_->accelerator : nullptr,
                    .learning = learning},
        std::move(weights));
    recorder_->tape().peak = peak_.get();
    budget_->tapes.push_back(&recorder_->tape());
    open_tapes().push_back(&recorder_->tape());
    open_budgets().push_back(&*budget_);
  }
  try {
    if (!budget_->accelerator) limit_.emplace(*budget_);
    interceptor_.emplace(recorder_, libtorch::Reach::kBackwardAsWell);
  } catch (...) {
    end(/*is_whole=*/false);
    throw;
  }
}

void Session::finish() {
  if (!interceptor_) return;
  note_end();
  // If it cannot be ended, it is no step to learn from.
  is_whole_ = false;
  recorder_->tape().close(/*may_throw=*/true);
  end(/*is_whole=*/true);
  if (!other_step_.empty()) throw PlanError(std::exchange(other_step_, {}));
}

void Session::note_end() {
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  recorder_->tape().note_end();
}

void Session::end(bool is_whole) {
  interceptor_.reset();
  // Without the lock: it has to let go of it, where another thread frees what the tape manages.
  recorder_->tape().close(/*may_throw=*/false);
  if (Weighing* const weighing = recorder_->tape().weighing()) weighing->end(is_whole);
  std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  limit_.reset();
  std::erase(budget_->tapes, &recorder_->tape());
  std::erase(open_tapes(), &recorder_->tape());
  // One for each of its steps.
  open_budgets().erase(std::ranges::find(open_budgets(), &*budget_));
  recorder_->tape().report.peak = peak_->peak();
  budget_->last = recorder_->tape().report;
  if (!is_whole) {
    // The next one has to be the plan's.
    if (!budget_->expected_step) budget_->expected_step = std::move(expected_);
    return;
  }
  Learning::End done = recorder_->tape().take_end();
  if (expected_ && done.hash != expected_->step()) {
    other_step_ = text_of_other_step(expected_->operators(), done.calls, done.followed);
  }
  budget_->learning.step_ended(std::move(done));
}

Session::~Session() {
  if (!interceptor_) return;
  const bool is_whole = is_whole_ && std::uncaught_exceptions() == exceptions_;
  if (is_whole) note_end();
  end(is_whole);
}

}  // namespace reprise::tape

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
        "MemoryBudget: a plan is of no use to a budget whose options say learn = false or "
        "paranoid = true; leave learn true and paranoid false");
  }
  budget_->learning.use(plan);
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  budget_->expected_step.reset();
  if (on_other == OnOtherStep::kThrow) budget_->expected_step = plan;
}

bool MemoryBudget::wait_for_plan(std::chrono::duration<double> most) const {
  return budget_->learning.wait(most);
}

Bytes MemoryBudget::limit() const { return budget_->limit; }

StepReport MemoryBudget::report() const {
  std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  if (budget_->tapes.empty()) return budget_->last;
  const tape::Tape& tape = *budget_->tapes.back();
  StepReport report = tape.report;
  report.peak = tape.peak->peak();
  return report;
}

MemoryBudget::Step MemoryBudget::step() { return Step(std::make_unique<tape::Session>(budget_)); }

MemoryBudget::Step::Step(std::unique_ptr<tape::Session> session) : session_(std::move(session)) {}
MemoryBudget::Step::Step(Step&&) noexcept = default;
MemoryBudget::Step::~Step() = default;
void MemoryBudget::Step::finish() { session_->finish(); }

struct Pin::Impl {
  libtorch::HeldMemory memory;
};

Pin::Pin(const at::Tensor& tensor) : impl_(new Impl{libtorch::HeldMemory(tensor)}) {}
Pin::~Pin() = default;

}  // namespace reprise
