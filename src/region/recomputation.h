// The tensors that one run of a region's function saved again, for one backward call or group of
// them.
//
// While the function runs, this is the thread's hook provider: each tensor that autograd saves goes
// into the next slot. When the last slot that anybody still waits for is full, the run is either
// left by an exception or goes on without hooks. Afterwards every tensor is handed out once, and is
// gone from here at that moment, so that memory falls as backward proceeds, with retain_graph too.
//
// Invariants: `collect` may be called from any thread that works for the run (a backward inside the
// function), so slots are guarded by `mutex_`; of the rest, only the atomics are written during the
// run.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/base/thread_state.h"
#include "region/metadata.h"
#include "region/replay_state.h"

namespace reprise::region {

// Leaves a function whose remaining work nobody needs. A std::exception, because autograd's engine
// lets only those pass through a backward inside the function.
class StopRecomputation final : public std::exception {
 public:
  const char* what() const noexcept override {
    return "reprise: recomputation complete (internal; let it pass)";
  }
};

// How a run ends once every slot that is waited for is full.
enum class AtLastSlot {
  kLeave,               // by StopRecomputation
  kLeaveAfterOperator,  // likewise, where a guest language cannot do it cheaper (foreign.h)
  kGoOnUnhooked,        // to the function's end, saving nothing
  kGoOnCounting,        // to the function's end, counting what else is saved
};

class Recomputation final : public libtorch::HookProvider,
                            public std::enable_shared_from_this<Recomputation> {
 public:
  // Forward saved `count` tensors; nobody waits for any after `last_wanted`. `hash`: remember
  // hashes of the tensors' values. Before the run, of which no earlier one may be in here.
  void start(std::size_t count, std::size_t last_wanted, AtLastSlot at_last, bool hash);
  // The function will be run on these, and changes none of them in place.
  void note_arguments(at::TensorList arguments);
  // To be called at every save of the run that is about to begin.
  void tell_saves_to(const std::function<void(void*, std::size_t)>* on_save, void* scope) {
    on_save_ = on_save;
    scope_ = scope;
  }
  // Somebody waits for this one.
  void want(std::size_t index);

  std::unique_ptr<libtorch::SavedVariableHooks> make_hooks() override;

  // What a wanted slot was filled with; null for any other. Only after the run and before `take`.
  struct Slot {
    at::Tensor tensor;
    libtorch::SavedVersion version;
    std::uint64_t hash = 0;
    bool wanted = false;
    bool filled = false;
  };
  const Slot* saved(std::size_t index) const;
  std::size_t count() const { return next_; }
  std::size_t slots() const { return slots_.size(); }
  // All wanted slots are full, and the run was or may be cut short.
  bool complete() const { return complete_; }
  bool left_early() const { return left_; }
  // The run may be ended by StopRecomputation or what takes its place.
  bool may_be_left() const {
    return at_last_ == AtLastSlot::kLeave || at_last_ == AtLastSlot::kLeaveAfterOperator;
  }

  // Hands out the tensor of a slot. False if it was handed out before. Throws autograd's in-place
  // error if the function changed the tensor after it was saved.
  bool take(std::size_t index, at::Tensor& tensor);
  // The same, but the tensor stays here until drop().
  bool look(std::size_t index, at::Tensor& tensor);
  void drop(std::size_t index);
  // Forgets what was saved: the run has failed.
  void clear();
  // For the ReplayState::Scope around a run.
  ReplayState::Undo& undo() { return undo_; }
  // Saved tensors get copies of memory that is about to be put back.
  void outlast_undo();
  // Nothing is left to hand out.
  bool exhausted() const;

  // Serialises the threads of one backward that need this run: the first one recomputes.
  std::mutex run_mutex;
  std::atomic<bool> done{false};

 private:
  class Collector;
  bool hand_out(std::size_t index, at::Tensor& tensor, bool keep);
  bool is_argument(const at::Tensor& tensor) const;
  void collect(const at::Tensor& tensor);

  ReplayState::Undo undo_;
  mutable std::mutex mutex_;
  c10::SmallVector<Slot, 2> slots_;
  std::size_t last_wanted_ = 0;
  std::size_t next_ = 0;
  std::size_t left_to_take_ = 0;
  AtLastSlot at_last_ = AtLastSlot::kLeave;
  std::int64_t backward_ = -1;
  // Arguments that come from operators outside, with the nodes of these.
  c10::SmallVector<std::pair<const c10::TensorImpl*, const void*>, 2> arguments_;
  bool hash_ = false;
  const std::function<void(void*, std::size_t)>* on_save_ = nullptr;
  void* scope_ = nullptr;
  std::atomic<bool> complete_{false};
  bool left_ = false;
};

}  // namespace reprise::region
