// MemoryBudget: a byte budget that needs no annotation. The step fits, and its gradients are
// bitwise those of the plain step.
//
//   reprise::MemoryBudget budget{reprise::GiB(8)};
//   for (auto& batch : data) {
//     auto step = budget.step();              // everything in this scope is managed
//     auto loss = model->loss(batch);
//     loss.backward();
//     optimizer.step(); optimizer.zero_grad();
//     step.finish();
//   }
//   std::cout << to_string(budget.report().peak);
//
// Inside a step the operators below autograd are recorded on a tape. When an allocation would pass
// the budget, the tape drops the bytes of results that it can replay, whoever holds them
// (variables, modules, autograd's graph). It restores them before an operator reads them. Scores of
// Dynamic Tensor Rematerialization (arXiv:2006.09616) choose what is dropped.
// docs/using_a_budget.md says what is never dropped, docs/how_the_tape_works.md how the tape works.
//
// The budget counts all bytes of the device's allocator (live_bytes()): also parameters, gradients,
// optimizer state and temporaries, and what other threads allocate meanwhile.
//
// Small calls. On the CPU, a known call whose results are all below BudgetOptions::min_bytes is not
// recorded. Its results stay, even after their tensors have died, as long as a replay may read
// them. Once a step has kept more than 256 KiB in this way, it records small calls too.
//
// Threads. A BudgetError reaches only threads that work for a step of the budget: the thread that
// opened the step, and threads with its LibTorch state (autograd's threads, a thread with the
// step's at::ThreadLocalState). Every other thread always gets its memory: a data loader, a logger,
// OpenMP's workers, a thread that a kernel starts, a step of another budget. Values are dropped to
// make room for what it allocates on the CPU. Bytes that find no room are handed out all the same
// and counted, so the peak may pass the limit by StepReport::other_threads. The step's own next
// allocation is then refused, and the error names those bytes.
//
// Accelerators (BudgetOptions::device). The allocator asks nobody there. So room is made before
// an operator runs, for the bytes that the same call (operator, shapes, numbers) took before in any
// step of the budget. A new call is expected to need as much as its arguments have. So the first
// step may pass the limit by the error of such guesses, and no guess refuses a step. From the
// second step on the peak stays within the budget, as far as calls take what they took before. If
// the device itself is full (c10::OutOfMemoryError), values are dropped, and an operator that has
// not changed its arguments runs again; if nothing can be dropped, the error passes on. No step
// waits for the device, but with verify, an observer (once, at its end) or a store.
// While a graph records the thread's stream (CUDA graphs), step(), every operator in a step, and
// finish() throw UsageError: a step decides while it runs what to drop, which a graph cannot repeat.
// Accelerators were tried on a simulated device (tests/fake_device), and on one GPU
// (docs/results/gpu.md).
//
// A program must not do two things inside a step:
// - write through a pointer (data_ptr(), accessor()) to anything but a factory's result that no
//   operator has read yet, for a replay makes the value without the write. BudgetOptions::verify
//   finds such writes.
// - use a pointer into a tensor's memory beyond the next operator, unless a Pin holds the tensor.
//   To take a pointer to dropped bytes is an error on any thread; a pointer taken before cannot be
//   checked.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/bytes.h>
#include <reprise/error.h>
#include <reprise/step_trace.h>
#include <reprise/store.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace reprise {

class BudgetObserver;
class ValueWeights;

namespace detail {
struct LearnedPlanAccess;
}
namespace tape {
class Budget;
class Session;
}  // namespace tape

enum class OnExceeded {
  kThrow,  // BudgetError, from the operator that asked for the bytes
  kWarn,   // pass the limit, with one warning a step
  // For the rest of the step, the limit is a quarter above what was needed. It is also raised where
  // half of the time since it was last raised went to replays. StepReport::peak tells by how much.
  kPass,
};

struct BudgetOptions {
  // -- What is budgeted

  // The CPU, or one accelerator device (without an index: the current one). Tensors of other
  // devices are not managed, and copies between devices are never dropped. Several devices take one
  // budget each, and their steps nest.
  c10::Device device = c10::kCPU;
  OnExceeded on_exceeded = OnExceeded::kThrow;
  // Parks values there if moving them out and in takes less time than computing them; values that
  // it cannot park or load are computed, with a warning. A disk_store(), a host_store() for an
  // accelerator, or a store of your own that is exact and keeps values outside of the memory that
  // the budget counts. MemoryBudget's constructor has the rules for a store.
  std::shared_ptr<Store> store = {};

  // -- Which value is dropped first

  // The value with the lowest score is dropped first, and results of backward (calls without grad
  // mode) after all others.
  Heuristic heuristic = Heuristic::kHUp;
  // Smaller values are not dropped, since dropping them would cost more than it frees; at least 0.
  // On the CPU rows of int64 and int32 (lengths, batch sizes, offsets) are never dropped, because
  // LibTorch's composites hold raw pointers into them.
  Bytes min_bytes = KiB(16);
  // Multiplies the heuristic's scores (reprise/budget_extensions.h) where no plan decides.
  std::shared_ptr<ValueWeights> weights = nullptr;

  // -- How long a step may take

  // Plans steps that repeat, in a thread of low priority, and then follows the plan. Costs are
  // then measured replays and packing; otherwise the least time of first runs. On accelerators
  // costs are times of the device in few steps (docs/using_a_budget.md). A step noted for a plan
  // resets the peak in an accelerator's LibTorch statistics.
  bool plan_repeated_steps = true;
  // The most time for planning one step. A first plan is ready after a twentieth of it.
  Seconds planning_time{10};
  // The most time that a step may spend on replays; beyond it the step ends with a BudgetError.
  // Just above the smallest budget that works, replays may take exponentially long.
  Seconds replay_limit{std::numeric_limits<double>::infinity()};

  // -- Watching and debugging

  std::shared_ptr<BudgetObserver> observer = nullptr;  // is told what the tape does
  // Hashes every result when it is dropped and compares it when it is restored. A difference is a
  // DeterminismError that names the operator.
  bool verify = false;
  // Drops everything droppable after each operator, so that every read is a replay: for tests.
  bool paranoid = false;
};

// The counts, bytes and times of one step.
struct StepReport {
  Bytes peak;  // the most bytes live at once
  // The part of the peak, on the CPU, that threads outside of all steps held at once of their
  // allocations during steps. The peak may pass the limit by this and by other budgets' steps.
  Bytes other_threads;
  // On the CPU, the most bytes that threads of steps held at once of what they allocated past
  // LibTorch's operators: by graphs that torch.compile made, or by other libraries. A budget cannot
  // drop them.
  Bytes past_operators;
  std::int64_t operators = 0;  // recorded calls and small ones
  std::int64_t dropped = 0;    // values
  Bytes dropped_bytes;
  std::int64_t replayed = 0;  // operators that ran again
  Seconds replay_time{};
  // Values with two kinds of elements, such as dropout masks, that were packed into a bit each
  // instead of being dropped.
  std::int64_t packed = 0;
  Bytes packed_bytes;         // before packing
  std::int64_t unpacked = 0;  // restored from the bits
  Seconds pack_time{};        // for packing and unpacking
  std::int64_t followed = 0;  // operators that matched a step with a plan
  std::int64_t parked = 0;    // values moved to the store
  Bytes parked_bytes;
  std::int64_t loaded = 0;  // values loaded from the store
  Seconds transfer_time{};  // that the step waited for the store
  // The tape's own time on the host: bookkeeping and the choice of values, without operators,
  // replays, packing and transfers. On an accelerator, whose replays take time of the device, the
  // time to give them to it is included. Views are not measured.
  Seconds own_time{};
};

// A plan that a MemoryBudget made for a step that repeats: what to drop after which operator, and
// when to restore it. A job can begin with the plan of an earlier one.
//
//   if (const auto plan = budget.plan()) plan->write("step.plan.json");
//   ...
//   reprise::MemoryBudget budget{reprise::GiB(8)};
//   budget.use(reprise::LearnedPlan::read("step.plan.json"));
//
// A plan fits one step: the same operators on the same shapes in the same order. It decides only
// what is dropped first. A step that it does not fit is as right as without it, and slower.
//
// Plans are constant and cheap to copy; any thread may use one.
class LearnedPlan {
 public:
  struct Figures {
    Bytes limit;  // of the budget that it was made for
    // In the planner's model: the step's time with replays divided by the time without, and a
    // proven bound that no plan can be below.
    double slowdown = 1, bound = 1;
  };

  // Throws UsageError "FILE:LINE: FIELD: reason" for a text that is no plan or was changed since it
  // was written, and UsageError with the file and the reason if the file cannot be read.
  static LearnedPlan read(const std::filesystem::path& file);
  static LearnedPlan parse(std::string_view json, const std::string& origin);
  std::string json() const;
  // Makes or replaces the file. Throws Error if it cannot be written as a whole.
  void write(const std::filesystem::path& file) const;

  Figures figures() const;
  // A hash of all operators and what they read: equal for steps that are the same.
  std::uint64_t step() const;
  std::int64_t operators() const;

 private:
  friend struct detail::LearnedPlanAccess;
  struct Impl;
  explicit LearnedPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

class MemoryBudget {
 public:
  // At most `limit` bytes on the device. Throws UsageError for
  // - a limit that is not positive, and options out of range;
  // - a device that does not exist or whose allocator keeps no statistics;
  // - a store that is not exact or does not take the device's tensors, a memory_store() (it frees
  //   nothing), and a compressed_store() (it allocates counted memory to park);
  // - a LibTorch in which operators cannot be seen below autograd.
  // A store must not allocate memory of the device on threads of its own while it is called, and
  // must not be the store of an OffloadScope inside a step.
  explicit MemoryBudget(Bytes limit, BudgetOptions options = {});
  // A fraction of all bytes of the device. For the CPU these are the machine's physical memory or,
  // if that is smaller, the limit of the process's control group. Memory in use is not subtracted.
  // Throws UsageError for a fraction that is not above 0 and at most 1, and as the constructor.
  static MemoryBudget fraction_of_device(double fraction, BudgetOptions options = {});
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // A managed stretch of this thread, and of every backward that is called in it. Steps of several
  // threads may overlap; steps of one thread must end in reverse order.
  class Step {
   public:
    // Ends the step as finish() does, but never throws: a value that cannot be restored within the
    // budget stays dropped, and reading it is an error.
    ~Step();
    Step(Step&&) noexcept;
    Step& operator=(Step&&) = delete;

    // Restores dropped values that are still held, and clears the tape. Throws BudgetError at once,
    // with all bytes that this takes, if they do not fit. Throws UsageError if a step inside this
    // one is still open on this thread, or if this one was moved from. A second call does nothing.
    void finish();

   private:
    friend class MemoryBudget;
    explicit Step(std::unique_ptr<tape::Session> session);
    std::unique_ptr<tape::Session> session_;
  };
  // Throws UsageError while a graph records the accelerator's current stream.
  Step step();

  // The plan that was followed or made last; none if no step repeated or nothing was ever dropped.
  std::optional<LearnedPlan> plan() const;
  enum class OnOtherStep {
    kThrow,
    kLearn,  // make a plan for the other step, in silence
  };
  // From the next step on, steps that begin like the plan's follow it. Throws UsageError for a plan
  // made for more bytes than the limit.
  //
  // If the next whole step is another one, its finish() throws PlanError after all its work. The
  // plan stays for steps that it fits. The first step of an optimizer, which makes its state,
  // differs from the later ones: call use() after it, or with OnOtherStep::kLearn.
  void use(const LearnedPlan& plan, OnOtherStep on_other = OnOtherStep::kThrow);
  // Waits until nothing is being planned, at most this long. Returns whether nothing is.
  bool wait_for_plan(Seconds most) const;

  // An estimate of the least bytes in which a step runs. The limit may be far above it: a step that
  // drops nothing tells as much. Like the limit, it counts all bytes of the device, with those of
  // other threads as they were in the recorded step.
  //
  // The budget records its first two whole steps (an optimizer makes its state in the first), and
  // any step after one with another number of operators. The newest record counts. There is none
  // before the first whole step, and for paranoid budgets.
  //
  // The record is simulated by the rules of the tape, without a plan, with the measured costs and
  // with others around them. Up to 1 % is added for the rounding of allocators. In tests the result
  // is within 2 % of the least limit in which five of five steps of new budgets run. What is
  // dropped first depends on measured times, so leave some percent of room.
  //
  // The first call simulates the step many times: a moment for hundreds of operators, much longer
  // for many thousands. Any thread may call it.
  std::optional<Bytes> least() const;

  Bytes limit() const;
  // The report of the step that ended last, or of the one under way.
  StepReport report() const;

 private:
  std::shared_ptr<tape::Budget> budget_;
};

// While it lives, keeps the bytes of a tensor's storage in place, so that pointers into them stay
// good for reading. Writes through them are not seen. It restores dropped bytes first, has no
// effect outside of steps, and may outlive the step.
class Pin {
 public:
  explicit Pin(const at::Tensor& tensor);
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
