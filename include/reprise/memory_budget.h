// A byte budget that needs no annotation: the step fits, and its gradients are bitwise those of the
// plain step.
//
//   reprise::MemoryBudget budget{reprise::GiB(8)};
//   for (auto& batch : data) {
//     auto step = budget.step();              // everything in this scope is managed
//     auto loss = model->loss(batch);
//     loss.backward();
//     optimizer.step(); optimizer.zero_grad();
//     step.finish();
//   }
//   std::cout << budget.report().peak;
//
// Inside a step the operators below autograd are recorded on a tape. When an allocation would pass
// the budget, the tape drops the bytes of results that it can replay, whoever holds them (variables,
// modules, autograd's graph). It restores them before an operator reads them. Scores of Dynamic
// Tensor Rematerialization (arXiv:2006.09616) choose what is dropped.
// docs/using_a_budget.md says what is never dropped, docs/how_the_tape_works.md how it works.
//
// On the CPU, calls that make nothing as large as BudgetOptions::smallest are not recorded once the
// budget knows them. Their results stay, even after their tensors have died, for as long as a replay
// may read them. Once a step has kept more than 256 KiB in this way, such calls are recorded for
// the rest of it.
//
// The budget counts all bytes of the device's allocator (live_bytes()): parameters, gradients,
// optimizer state and temporaries too, and whatever other threads allocate meanwhile.
//
// Threads. A BudgetError comes only to a thread that works for a step of the budget: the one that
// opened the step, and those to which LibTorch carries its state (autograd's threads, a thread with
// the step's at::ThreadLocalState). Every other thread (a data loader, a logger, a thread that a
// kernel starts itself, OpenMP's workers too, a step of another budget) has no part in the limit:
// values are dropped to make room for what it allocates on the CPU, and what finds no room is
// handed out and counted all the same. So the peak may pass the limit by StepReport::other_threads;
// the step's own next allocation is refused then, and the error names those bytes.
//
// On an accelerator (BudgetOptions::device) the allocator asks nobody, and room is made before an
// operator runs, from what the same call (operator, shapes, numbers) took before in any step of the
// budget. A call that was never made is taken to need as much as its arguments have: the first step
// may pass the limit by what such a guess is short of, and is not refused for one. From the second
// step on the peak stays within the budget, as far as calls take what they took before. Where the
// device itself is full (c10::OutOfMemoryError), values are dropped, and the operator is run again
// if it has not changed its arguments; if nothing can be dropped the error goes on.
// docs/using_a_budget.md says what is exact. All of this was tried on a simulated device alone
// (tests/fake_device).
//
// What a program must not do inside a step: write through a pointer (data_ptr(), accessor()) to
// anything but what a factory has made and no operator has read yet, for what an operator has made
// may be made again without the write (BudgetOptions::verify finds that); and keep a pointer into a
// tensor's memory beyond the next operator, unless the tensor is pinned. A pointer that is taken
// while the bytes are gone is an error that says so, on any thread; one that was taken before
// cannot be seen.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/bytes.h>
#include <reprise/error.h>
#include <reprise/learned_plan.h>
#include <reprise/store.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

namespace reprise {

class BudgetObserver;
class ValueWeights;

namespace tape {
class Budget;
class Session;
}  // namespace tape

enum class OnExceeded {
  kThrow,  // BudgetError, from the operator that asked for the bytes
  kWarn,   // go on over the budget, with one warning a step
};

struct BudgetOptions {
  // Whose bytes the budget is of: the CPU, or one accelerator device (without an index: the current
  // one when the budget is made). Tensors of other devices are not managed, and what is copied from
  // one device to another is never dropped. Several devices take a budget each, whose steps nest.
  c10::Device device = c10::kCPU;
  // Which value goes first: h_up, h_dtr, h_eq, h_local, lru, largest or random, as
  // `reprise simulate` knows them. With `weights` each score is multiplied by the value's weight.
  // Results of backward (calls without grad mode) are dropped after all others.
  std::string heuristic = "h_up";
  OnExceeded on_exceeded = OnExceeded::kThrow;
  // Hash every result when it is dropped, and compare when it has been made again; a difference is
  // a DeterminismError that names the operator.
  bool verify = false;
  // Drop everything that may go after each operator, so that every read is a replay: for tests.
  bool paranoid = false;
  // Where values go that it is sooner to move out and in again than to compute: a disk_store(), or
  // an exact store of your own that keeps them elsewhere than in memory of LibTorch's CPU
  // allocator, which the budget counts. Refused are a memory_store(), which would free nothing, a
  // compressed_store(), which allocates there to park, and stores that are not exact or do not take
  // the device's tensors. For an accelerator a host_store(). What could not be parked or brought
  // back is computed again, with a warning. It must not allocate memory of the device on threads of
  // its own while it is called, nor be the store of an Offload scope inside of a step.
  std::shared_ptr<Store> store = {};
  // Values below this size, at least 0, are not dropped: it would cost more than it frees. Nor are,
  // on the CPU and whatever their size, rows of int64 and int32, into which LibTorch's composites
  // hold raw pointers: lengths, batch sizes, offsets. Most calls that make nothing else are not
  // recorded either (above).
  Bytes smallest = KiB(16);
  // The most time that a step may spend on running operators again: just above the smallest budget
  // that works it may be exponentially long. Past it the step ends with a BudgetError.
  std::chrono::duration<double> replay_limit{std::numeric_limits<double>::infinity()};
  // Plans steps that come again, in a thread of low priority, and then follows the plan: what the
  // step will read is known, and not guessed. Until there is one, and for it, costs are what
  // running operators again and packing were measured to take; without, and on
  // accelerators, the least that operators took at first. The gradients are the same, and so is the
  // limit. On an accelerator a step that is noted for a plan resets the peak of LibTorch's own
  // statistics.
  bool learn = true;
  // The most time that a step is planned for; a first plan is there after a twentieth of it.
  std::chrono::duration<double> planning{10};
  // What scores of the heuristic are multiplied by (value_weights.h); null: nothing. They choose
  // where no plan does.
  std::shared_ptr<ValueWeights> weights = nullptr;
  // Is told what the tape does (budget_observer.h); null: nobody is.
  std::shared_ptr<BudgetObserver> observer = nullptr;
};

// What a step did.
struct StepReport {
  Bytes peak;  // the most bytes live at once
  // Of them, on the CPU: the most that threads outside of all steps held at once of what they had
  // allocated while there was a step. By so much, and by what steps of other budgets took, may the
  // peak be above the limit.
  Bytes other_threads;
  std::int64_t operators = 0;  // recorded, or passed by for making only what is too small
  std::int64_t dropped = 0;
  Bytes dropped_bytes;
  std::int64_t replayed = 0;  // operators run again
  double replay_seconds = 0;
  // Went without being lost: elements of two kinds, as in dropout masks, became a bit each.
  std::int64_t packed = 0;
  Bytes packed_bytes;         // before
  std::int64_t unpacked = 0;  // and brought back from there
  double pack_seconds = 0;    // of both
  std::int64_t followed = 0;  // operators that were those of a step that has a plan
  std::int64_t parked = 0;    // moved to the store
  Bytes parked_bytes;
  std::int64_t loaded = 0;      // and brought back from there
  double transfer_seconds = 0;  // that the step waited for the store
  // The tape's own time on the CPU: bookkeeping and the choice of values, without operators,
  // replays, packing and transfers. Views are not measured.
  double own_seconds = 0;
};

class MemoryBudget {
 public:
  // At most `limit` bytes on the device. Throws UsageError for a limit that is not positive, for
  // options out of range, for a heuristic that is not known, for a store that is of no use to it,
  // for a device that is not there or whose allocator keeps no statistics, and where operators
  // cannot be seen below autograd.
  explicit MemoryBudget(Bytes limit, BudgetOptions options = {});
  // That part of all the bytes that the device of the options has; of the CPU: of the machine's
  // physical memory, or of the limit of the process's control group where that is smaller. Memory
  // that others use is not taken off. Throws UsageError for a fraction that is not above 0 and at
  // most 1, and as the constructor does.
  static MemoryBudget fraction_of_device(double fraction, BudgetOptions options = {});
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // A managed stretch of this thread, and of every backward that is called in it. Steps of several
  // threads may overlap; those of one thread must end in reverse order.
  class Step {
   public:
    // Ends the step like finish(), but never throws: what cannot be brought back within the budget
    // stays gone, and reading it is an error.
    ~Step();
    Step(Step&&) noexcept;
    Step& operator=(Step&&) = delete;

    // Brings back what was dropped and is still held, and forgets the tape. BudgetError where that
    // does not fit: at once, with all the bytes that it takes. UsageError if a step inside of this
    // one is still open on this thread, or if this one was moved from.
    void finish();

   private:
    friend class MemoryBudget;
    explicit Step(std::unique_ptr<tape::Session> session);
    std::unique_ptr<tape::Session> session_;
  };
  Step step();

  // The plan of the step that was followed, or planned, last; none where nothing came again, or
  // where nothing was ever dropped.
  std::optional<LearnedPlan> plan() const;
  // Steps that begin like the plan's follow it, from the next one on. Throws UsageError for a plan
  // that was made for more bytes than the limit. If the next whole step is another one, its
  // finish() throws PlanError, when all is done that finish() does; the plan stays for steps that
  // it fits. An optimizer's first step, which makes its state, is another one than those after it:
  // use() the plan then, or with OnOtherStep::kLearn.
  enum class OnOtherStep {
    kThrow,
    kLearn,  // a plan of its own, in silence
  };
  void use(const LearnedPlan& plan, OnOtherStep on_other = OnOtherStep::kThrow);
  // Until nothing is being planned, or the time is over; whether nothing is.
  bool wait_for_plan(std::chrono::duration<double> most) const;

  // An estimate of the least bytes in which a step runs. The budget records its first two whole
  // steps (an optimizer makes its state in the first), and the one after a step with another number
  // of operators; the newest of these counts. Nothing before the first whole step, and for paranoid
  // budgets. The limit may be far above: a step that drops nothing tells as much.
  //
  // The recorded step is simulated by the rules of the tape, without a plan, with the measured
  // costs and with others around them. Up to 1 % is added for the rounding of allocators. In
  // tests the result is within 2 % of the least limit in which five of five steps of new budgets
  // run. Which value is dropped first depends on measured times, so no limit this low is a promise:
  // leave some percent of room. Like the limit it counts all bytes of the device, those of other
  // threads as they were in the step. The first call simulates the step many times: a moment for hundreds
  // of operators, much longer for many thousands. Any thread may call it.
  std::optional<Bytes> least() const;

  Bytes limit() const;
  // Of the step that ended last, or of the one under way.
  StepReport report() const;

 private:
  std::shared_ptr<tape::Budget> budget_;
};

// Keeps the bytes of a tensor's storage where they are while it lives, so that pointers into them
// stay good for reading: writes through them are not seen. Brings them back first, if they were
// dropped. Without effect outside of steps; it may outlive the step.
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
