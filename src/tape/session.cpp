// Budgets and steps: reprise/budget.h.
#include "tape/session.h"

#include <c10/util/Exception.h>
#include <reprise/error.h>
#include <reprise/memory.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "libtorch/autograd/engine.h"
#include "libtorch/memory/counting_allocator.h"
#include "tape/own_time.h"
#include "tape/refusal.h"

namespace reprise::tape {
namespace {

using libtorch::LimitedWork;

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

bool free_dead_root_on(c10::Device device) {
  auto tapes = open_tapes_on(device);
  return std::ranges::any_of(tapes, [](Tape* tape) { return tape->free_dead_root(); });
}

bool drop_bits_on(c10::Device device) {
  auto tapes = open_tapes_on(device);
  return std::ranges::any_of(tapes, [](Tape* tape) { return tape->drop_bits(); });
}

// What was given to stores may not have arrived.
void flush_stores_on(c10::Device device, StepReport& waiting) {
  for (const Tape* tape : open_tapes_on(device)) {
    if (tape->parking() != nullptr) tape->parking()->flush(waiting.transfer_time);
  }
}

}  // namespace

bool is_alone_on(c10::Device device) {
  auto tapes = open_tapes_on(device);
  return std::ranges::distance(tapes.begin(), tapes.end()) == 1;
}

namespace {

BudgetOptions with_late_observer(BudgetOptions options) {
  if (options.device.is_cpu() || options.observer == nullptr) return options;
  options.observer = std::make_shared<LateObserver>(std::move(options.observer));
  return options;
}

}  // namespace

Budget::Budget(Bytes most, BudgetOptions chosen)
    : LimitKeeper(most.count),
      limit(most),
      options(with_late_observer(std::move(chosen))),
      heuristic(plan::make_heuristic(options.heuristic)),
      costs(learns(options)),
      learning(most, options.planning_time) {
  if (limit.count <= 0) {
    throw UsageError("MemoryBudget: the limit is " + std::to_string(limit.count) +
                     " bytes; it must be above 0");
  }
  if (options.min_bytes.count < 0) {
    throw UsageError("MemoryBudget: BudgetOptions::min_bytes is " +
                     std::to_string(options.min_bytes.count) +
                     " bytes; it must be at least 0, which drops values of every size");
  }
  if (!(options.replay_limit.count() >= 0)) {
    throw UsageError("MemoryBudget: BudgetOptions::replay_limit is " +
                     std::to_string(options.replay_limit.count()) +
                     " s; it must be at least 0, and infinite where replays may take any time");
  }
  if (!(options.planning_time.count() > 0 && std::isfinite(options.planning_time.count()))) {
    throw UsageError(
        "MemoryBudget: the time for planning is " + std::to_string(options.planning_time.count()) +
        " s; it must be above 0, and finite (plan_repeated_steps = false plans nothing)");
  }
  if (!options.device.is_cpu()) {
    accelerator.emplace(options.device);
    accelerator->late = std::static_pointer_cast<LateObserver>(options.observer);
  }
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
  if (!parking || !fits(wanted - parking->waiting())) return false;
  parking->flush(waiting_step().transfer_time);
  return fits(wanted);
}

// The step that this thread works for; of other threads' allocations the one that began last.
StepReport& Budget::waiting_step() {
  const auto mine = std::ranges::find(tapes, Recorder::current_tape());
  return (mine != tapes.end() ? *mine : tapes.back())->report;
}

Refusal Budget::refusal(std::int64_t wanted) {
  Refusal refusal{.limit = limit, .live = Bytes(taken()), .wanted = Bytes(wanted), .parts = {}};
  std::int64_t at_begin = refusal.live.count;
  for (Tape* tape : open_tapes_on(device())) {
    refusal.parts += tape->undroppable();
    at_begin = std::min(at_begin, tape->peak->live_at_start().count);
  }
  if (!accelerator) {
    refusal.parts.other_threads += libtorch::bytes_of_other_threads().live();
    refusal.parts.past_operators = libtorch::bytes_past_operators().live();
  }
  refusal.parts =
      completed(refusal.parts, refusal.live.count, at_begin, KernelRun::taken(refusal.live.count));
  refusal.least = least.find_soon(*heuristic);
  return refusal;
}

Budget::Spent Budget::spent() const {
  Spent most;
  for (const Tape* tape : tapes) {
    most.replays = std::max<Seconds>(most.replays, tape->report.replay_time);
    most.elapsed = std::max<Seconds>(most.elapsed, tape->watch.elapsed());
  }
  return most;
}

// Just above the fewest bytes that suffice, the same values are dropped and restored time and again.
bool Budget::replays_too_long() const {
  const auto [replays, elapsed] = spent();
  const Seconds since = replays - when_passed.replays;
  return since > Seconds(0.5) && 2 * since > elapsed - when_passed.elapsed;
}

libtorch::LimitKeeper::Room Budget::make_room(std::int64_t wanted, bool is_guess) {
  // Whoever asks counts the limit itself.
  const auto made = [&] { return taken() + wanted <= limit.count ? Room::kMade : Room::kExceeded; };
  if (fits(wanted)) return made();
  // With room to spare, or every further allocation would drop all that can be dropped.
  const auto pass = [&] {
    constexpr double kRoom = 1.25;
    passed = static_cast<std::int64_t>(static_cast<double>(taken() + wanted) * kRoom) - limit.count;
    when_passed = spent();
    return Room::kExceeded;
  };
  if (options.on_exceeded == OnExceeded::kPass && replays_too_long()) return pass();
  // What is not of the budget's steps is not refused for them. What the tapes allocate to make room
  // is.
  const bool is_ours = libtorch::works_for(*this);
  const libtorch::AccountedWork accounted;
  std::optional<LimitedWork> work;
  if (!is_ours) work.emplace(*this);
  const OwnTime own;
  const auto drops = [](Tape* tape) { return tape->drop_one(); };
  bool has_waited = false;
  while (!fits(wanted)) {
    if (wait_for_store(wanted)) return made();
    if (std::ranges::any_of(tapes, drops) || drop_one_on(device())) continue;
    // What other budgets' values went to may not have arrived either.
    if (!std::exchange(has_waited, true)) {
      flush_stores_on(device(), waiting_step());
      continue;
    }
    if (free_dead_root_on(device())) continue;
    if (drop_bits_on(device())) continue;
    // Operators under way may have taken already what they were promised.
    if (is_guess || !is_ours || (accelerator && taken() > accelerator->device.live())) {
      return Room::kExceeded;
    }
    if (std::ranges::any_of(tapes, &Tape::tries_again)) throw NoRoom();
    if (options.on_exceeded == OnExceeded::kThrow) throw BudgetError(text_of(refusal(wanted)));
    if (options.on_exceeded == OnExceeded::kPass) return pass();
    if (!std::exchange(warned, true)) TORCH_WARN(text_of(refusal(wanted)));
    return Room::kExceeded;
  }
  return made();
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

namespace {

bool drop_until(c10::Device device, std::int64_t bytes) {
  const std::int64_t before = live_bytes(device).count;
  bool has_dropped = false;
  while (before - live_bytes(device).count < bytes &&
         (drop_one_on(device) || drop_bits_on(device))) {
    has_dropped = true;
  }
  for (Tape* tape : open_tapes_on(device)) {
    if (tape->parking() != nullptr) tape->parking()->flush(tape->report.transfer_time);
  }
  return has_dropped;
}

}  // namespace

bool give_up_on(c10::Device device, std::int64_t bytes) {
  const bool has_dropped = drop_until(device, bytes);
  libtorch::AcceleratorDevice(device).empty_cache();
  return has_dropped;
}

bool Budget::give_up(std::int64_t bytes) {
  const libtorch::AccountedWork accounted;
  const OwnTime own;
  const LimitedWork work(*this);
  return drop_until(device(), bytes);
}

namespace {

// Where steps overlap, what one of them takes is nothing to count on. Under the lock.
Learning* learning_of(Budget& budget) {
  return learns(budget.options) && budget.tapes.empty() ? &budget.learning : nullptr;
}

std::string text_of_other_step(std::int64_t planned, std::size_t calls, std::int64_t followed) {
  return "memory budget: the plan is of another step: it has " + std::to_string(planned) +
         " operators, and this step had " + std::to_string(calls) + ". Only the first " +
         std::to_string(followed) +
         " were the plan's. Make a plan with the same model, shapes and options. Call use() when "
         "the first step is over (an optimizer makes its state there), or with OnOtherStep::kLearn";
}

}  // namespace

Session::Session(std::shared_ptr<Budget> budget)
    : budget_(std::move(budget)),
      peak_(std::make_unique<PeakScope>(budget_->device())),
      other_threads_(libtorch::bytes_of_other_threads()),
      past_operators_(libtorch::bytes_past_operators()) {
  if (budget_->accelerator) budget_->accelerator->refuse_graph("step()");
  // They would count as long as the step runs, and nothing in it could drop them.
  libtorch::ensure_engine_front();
  libtorch::free_leftovers_of_backward();
  // Somebody else's: without the lock.
  std::unique_ptr<ValueWeights::Step> weights;
  if (budget_->options.weights != nullptr) weights = budget_->options.weights->step();
  {
    std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
    budget_->warned = false;
    if (budget_->tapes.empty()) {
      budget_->passed = 0;
      budget_->when_passed = {};
      budget_->forms.renew();
    }
    Learning* const learning = learning_of(*budget_);
    if (learning != nullptr) expected_ = std::exchange(budget_->expected_step, std::nullopt);
    recorder_ = std::make_shared<Recorder>(
        budget_, budget_->options, *budget_->heuristic, budget_->forms,
        Tape::Parts{.costs = budget_->costs,
                    .parking = budget_->parking ? &*budget_->parking : nullptr,
                    .accelerator = budget_->accelerator ? &*budget_->accelerator : nullptr,
                    .learning = learning,
                    .logs = !budget_->options.paranoid && budget_->least.wants_next()},
        std::move(weights));
    if (budget_->accelerator) {
      budget_->accelerator->begin_step(recorder_->tape().following().record.has_value());
    }
    recorder_->tape().peak = peak_.get();
    recorder_->tape().other_threads = &other_threads_;
    recorder_->tape().past_operators = &past_operators_;
    budget_->tapes.push_back(&recorder_->tape());
    open_tapes().push_back(&recorder_->tape());
    open_budgets().push_back(&*budget_);
  }
  try {
    if (!budget_->accelerator) limit_.emplace(*budget_);
    interceptor_.emplace(recorder_, libtorch::Reach::kBackwardAsWell, &*budget_);
  } catch (...) {
    end(/*is_whole=*/false);
    throw;
  }
}

StepReport settled(const Tape& tape) {
  StepReport report = tape.report;
  report.peak = tape.peak->peak();
  report.other_threads = Bytes(tape.other_threads->peak());
  report.past_operators = Bytes(tape.past_operators->peak());
  // On an accelerator replays take time of the device, and what giving them takes is the tape's own.
  const Seconds replays = tape.device().is_cpu() ? report.replay_time : Seconds(0);
  const double beside = (replays + report.pack_time + report.transfer_time).count();
  const double rate = tape.watch.elapsed().count() / (Tape::now() - tape.began);
  report.own_time = Seconds(std::max(0.0, report.own_time.count() * rate - beside));
  return report;
}

void Session::finish() {
  if (!interceptor_) return;
  if (interceptor_->is_inside_out()) {
    throw UsageError(
        "MemoryBudget: finish() was called on a step while an inner step is still open on this "
        "thread. The steps of a thread end in reverse order; end the inner step first");
  }
  if (budget_->accelerator) budget_->accelerator->refuse_graph("finish()");
  note_end();
  // If it cannot be ended, it is no step to learn from.
  is_whole_ = false;
  const double start = Tape::now();
  bring_back();
  {
    const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
    recorder_->tape().report.own_time += Seconds(Tape::now() - start);
  }
  end(/*is_whole=*/true);
  if (!other_step_.empty()) throw PlanError(std::exchange(other_step_, {}));
}

void Session::note_end() {
  const std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  recorder_->tape().note_end();
}

// Without the lock: the tape has to let go of it, where another thread frees what it manages. The
// thread may be another one than that of the step.
void Session::close(bool may_throw) {
  const LimitedWork work(*budget_);
  const libtorch::AccountedWork accounted;
  if (Weighing* const weighing = recorder_->tape().weighing()) weighing->let_go();
  recorder_->tape().close(may_throw);
}

void Session::end(bool is_whole) {
  interceptor_.reset();
  close(/*may_throw=*/false);
  if (Weighing* const weighing = recorder_->tape().weighing()) weighing->end(is_whole);
  std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  limit_.reset();
  std::erase(budget_->tapes, &recorder_->tape());
  std::erase(open_tapes(), &recorder_->tape());
  // One for each of its steps.
  open_budgets().erase(std::ranges::find(open_budgets(), &*budget_));
  budget_->last = settled(recorder_->tape());
  if (budget_->accelerator && budget_->accelerator->late) budget_->accelerator->late->tell();
  if (!is_whole) {
    // The next one has to be the plan's.
    if (!budget_->expected_step) budget_->expected_step = std::move(expected_);
    return;
  }
  budget_->least.step_ended(recorder_->tape());
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
