// The part of a budget that an accelerator needs beside the tape's own: room is made before an
// operator runs, not inside the allocation, since an accelerator's allocator asks nobody; times
// come from events of few steps; streams read memory that is about to go.
//
// Streams. A value's memory belongs to the stream that was current when its operator ran, and its
// allocator hands it out again for that stream. So every other stream that reads it is made known
// to the allocator (recordStream) when it reads: whoever frees the memory later, the tape or the
// program, it is not reused too early. What a replay has made on one stream is not there yet for
// another one, which the program has not made wait for a replay that it does not know: it waits.
//
// Under libtorch::limit_mutex(), but for the calls of operators themselves.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libtorch/memory/accelerator_device.h"
#include "libtorch/memory/event_timer.h"
#include "libtorch/memory/memory_limit.h"
#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_interceptor.h"
#include "reprise/memory.h"
#include "tape/device/late_observer.h"
#include "tape/device/operator_sizes.h"

namespace reprise::tape {

struct Producer;
struct Value;

// Of a budget, over all its steps.
//
// Which steps are timed. Two events around a call cost the host some microseconds, so a call is
// timed only while its costs are wanted: in the first steps of a budget, in steps that are noted
// for a plan, and in every kTimedEvery-th step, where all costs are measured anew. In such a step a
// signature is timed until DeviceCosts::kEnough of its measurements are there. All other steps
// record no event. Nothing ever waits for the measurements: calls ask whether some have arrived.
class Accelerator {
 public:
  static constexpr std::int64_t kFirstTimed = 3;
  static constexpr std::int64_t kTimedEvery = 100;
  // Measurements under way at once. A device may be some thousand calls behind the host.
  static constexpr std::size_t kMostTimed = 512;

  // Allocators hand out memory in pieces of some hundred bytes.
  static constexpr std::int64_t kPiece = 512;
  static std::int64_t rounded(std::int64_t bytes) { return (bytes + kPiece - 1) / kPiece * kPiece; }

  explicit Accelerator(c10::Device on) : device(on) {}

  const libtorch::AcceleratorDevice device;
  OperatorSizes sizes;
  DeviceCosts costs;
  // Null where the budget has no observer.
  std::shared_ptr<LateObserver> late;

  // Throws UsageError, with the name of what was called, while a graph records the current stream.
  void refuse_graph(const std::string& what) const;
  // Before the first operator of a step.
  void begin_step(bool is_noted);

  // None where the call's costs are not wanted now.
  std::optional<libtorch::EventTimer::Running> begin_timing(std::uint64_t signature);
  // `bytes`: of the call.
  void end_timing(libtorch::EventTimer::Running running, std::uint64_t signature,
                  std::int64_t bytes);
  // Takes down what the device has finished meanwhile.
  void poll();
  // For a replay, with the copies of what it writes to.
  std::int64_t bytes_to_replay(const Producer& producer) const;

 private:
  struct Timed {
    std::uint64_t signature;
    std::int64_t bytes;
  };
  std::int64_t steps_ = 0;
  bool times_ = false;
  libtorch::EventTimer timer_{kMostTimed};
  // The calls that the timer is asked about, in its order.
  std::deque<Timed> timed_;
};

// Streams and promised bytes of one step.
class DeviceSide {
 public:
  explicit DeviceSide(Accelerator& budgets) : of_budget(budgets) {}

  Accelerator& of_budget;
  const libtorch::AcceleratorDevice& device() const { return of_budget.device; }

  void refuse_graph(const libtorch::OperatorCall& call) const {
    of_budget.refuse_graph(call.schema().name());
  }
  // An operator or a holder reads the value, on the current stream.
  void used(Value& value);
  // A replay has made it there.
  void made_again(Value& value) const;
  // The step ends: whatever stream has worked in it may read the value, and the program knows of no
  // replay to wait for.
  void hand_over(Value& value) const;
  // An aten::record_stream, which would not know the memory behind its managed storage.
  void record_stream(libtorch::OperatorCall& call);

  // The memory of the arguments stays until the step ends: a collective that goes on reading it
  // cannot name its stream to the allocator.
  void keep(const libtorch::OperatorCall& call);
  void let_go() { kept_.clear(); }

  // Whether all that was recorded so far was given to the stream that is current.
  bool is_on_one_stream() const;

  // Bytes that operators under way may still take.
  std::int64_t promised = 0;

 private:
  // Until a second stream shows up all memory is the first one's, and read there alone.
  std::optional<c10::StreamId> first_;
  bool has_several_ = false;
  c10::SmallVector<c10::StreamId, 2> streams_;
  std::vector<c10::Storage> kept_;
};

// One operator call of the program: room before it, and what can be learnt from it.
class CallOnDevice {
 public:
  // Makes room. Throws BudgetError where there is none and the call's bytes are known.
  CallOnDevice(DeviceSide& side, libtorch::OperatorCall& call, std::uint64_t signature);
  ~CallOnDevice();
  CallOnDevice(const CallOnDevice&) = delete;
  CallOnDevice& operator=(const CallOnDevice&) = delete;

  // Runs the call. If the device is out of memory, drops values and runs the call again, as long as
  // that helps and the call has changed none of its arguments. It draws the same numbers each time.
  void proceed(const libtorch::OperatorFacts& facts);

  // The tape knows this of a call that has run.
  struct Learnt {
    double seconds;  // that such calls take, by what is known so far
    std::int64_t bytes;
    std::optional<LateObserver::Span> span;  // where an observer wants the times of each call
  };
  Learnt learn();
  std::uint64_t signature() const { return signature_; }

 private:
  static thread_local const CallOnDevice* running;
  // Of all threads and devices, without calls inside of calls; under the lock.
  static std::int64_t under_way;
  static std::int64_t begun;

  const CallOnDevice* const outer_;
  DeviceSide& side_;
  Accelerator& budgets_;
  libtorch::OperatorCall& call_;
  const std::uint64_t signature_;
  std::int64_t bytes_ = 0;
  std::int64_t promised_ = 0;
  // Which one it is, where no other was under way when it began; the allocator's statistics do not
  // tell whose bytes they are.
  std::optional<std::int64_t> alone_;
  std::optional<PeakScope> peak_;
  std::optional<libtorch::EventTimer::Running> running_;
  std::optional<libtorch::EventTimer::Running> observed_;
};

// Drops values of all steps that are under way on the device (session.cpp), until that many bytes
// more fit within all their budgets. Throws BudgetError where they do not, unless they are a guess.
void make_room_on(c10::Device device, std::int64_t wanted, bool is_guess);
// Drops at least that many bytes of a full device, if there are so many, whatever the budgets, and
// has the allocator return them. False if there were none.
bool give_up_on(c10::Device device, std::int64_t bytes);

}  // namespace reprise::tape
