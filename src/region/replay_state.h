// The state of the world around a region's function: noted in forward, put back for the time of a
// recomputation. Autocast and other ambient state, random generators, and the memory that the
// function writes to although it was there before it (BatchNorm's running statistics).
//
// Ambient state and the generators that every region has to do with are taken when forward enters
// the function. Other generators, and memory, are noted when an operator is about to draw from or
// write to them. A recomputation starts from all of it and leaves everything as it was before.
//
// Turning back what the whole process shares is done by one recomputation at a time, and only by
// those whose function has drawn or written. In a stage of a pipeline that has only written, the
// memory is the stage's own: its recomputations exclude each other, and no other stage's. A recomputation may itself run backward, whose worker
// threads may recompute further regions while the first one waits for them; the lock therefore
// belongs to the extent of the replay, which LibTorch carries along (ThreadState), and not to a
// thread.
#pragma once

#include <reprise/checkpoint.h>
#include <reprise/random_state.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "libtorch/base/ambient_state.h"
#include "libtorch/base/thread_state.h"
#include "libtorch/memory/fresh_memory.h"
#include "libtorch/memory/kept_memory.h"
#include "libtorch/operators/operator_effects.h"

namespace reprise::region {

class ReplayState final : public libtorch::EffectObserver {
 public:
  // Takes the state in force, for a region whose tensor arguments are `tensors`.
  ReplayState(const CheckpointOptions& options, at::TensorList tensors);

  // Notes what the function draws and writes while this lives: around its run in forward.
  class Recording {
   public:
    // `state`: to be pushed by the caller.
    Recording(std::shared_ptr<ReplayState> replay, libtorch::ThreadState& state);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    ReplayState* replay_ = nullptr;
    std::optional<libtorch::FreshMemory> fresh_;
    std::optional<libtorch::EffectScope> effects_;
  };

  // Of the tensors that forward saves, the count so far.
  void note_saves(std::size_t count) { saves_.store(count, std::memory_order_relaxed); }
  // Forward is over: forgets what needs no replay.
  void end_forward();

  // A recomputation starts from other memory than there is by then.
  bool turns_memory_back() const;
  bool replays_draws() const { return random_; }

  bool before_write(const at::Tensor& tensor) override;
  bool before_draw(const at::Generator& generator) override;

  class Undo;
  class Scope;

 private:
  struct Noted {
    at::Generator generator;
    RandomState state;
  };

  // The states that the generators are in now.
  RandomState take_default() const;
  RandomState take_own() const;
  bool covers(const at::Generator& generator) const;
  libtorch::ThreadState::ReplayLock lock_kind() const;
  // Of a stream that began inside, and begins again when the function runs again.
  bool is_from_inside(const at::Generator& generator) const;
  bool turns_back() const;

  bool random_ = false;
  bool memory_ = false;
  std::uint64_t restores_before_ = 0;
  std::vector<c10::Device> devices_;
  std::vector<at::Generator> generators_;
  RandomState default_state_;
  RandomState own_state_;
  // The stream in force when the region began.
  std::shared_ptr<libtorch::DrawStream> draws_;
  // Running statistics went there when the region began.
  std::shared_ptr<libtorch::BatchStatistics> statistics_;
  // The region belongs to a stage that has this lock. Null: it belongs to none.
  std::shared_ptr<std::mutex> stage_lock_;
  std::optional<libtorch::AmbientState> ambient_;

  // Guards what follows: the function may work on several threads.
  mutable std::mutex mutex_;
  std::vector<Noted> noted_;
  std::unique_ptr<libtorch::KeptMemory> before_;
  // The function runs in forward.
  std::atomic<bool> recording_{false};
  // It wrote to anything at all, or drew.
  std::atomic<bool> had_effects_{false};
  std::atomic<std::size_t> saves_{0};
  libtorch::FreshMemory::Mark mark_;
};

// What one recomputation does to the world, as it does it, so that it can be undone. Part of the
// recomputation, and used by it once.
class ReplayState::Undo final : public libtorch::EffectObserver {
 public:
  bool before_write(const at::Tensor& tensor) override;
  bool before_draw(const at::Generator& generator) override;
  // The run has written to this tensor's memory, to which forward had not. It will be put back.
  bool takes_back(const at::Tensor& tensor);

 private:
  friend class Scope;
  // Starts from what `state` has noted in forward.
  void turn_back(const ReplayState& state);
  // Everything as it was before turn_back(), and nothing noted any more.
  void put_back();

  // What forward noted, while the run goes on.
  std::atomic<const ReplayState*> state_{nullptr};
  libtorch::FreshMemory::Mark mark_;
  // Guards what follows: the run may work on several threads.
  std::mutex mutex_;
  std::vector<Noted> noted_;
  // What forward wrote to, and what this run alone writes to.
  std::unique_ptr<libtorch::KeptMemory> before_;
  std::unique_ptr<libtorch::KeptMemory> only_here_;
};

// Puts the state back until destroyed; then everything is as before. Generators from which forward
// drew nothing are left alone.
class ReplayState::Scope {
 public:
  // `undo` is part of `owner` and must outlive the scope. `thread`: to be pushed by the caller.
  template <class Owner>
  Scope(ReplayState& state, Undo& undo, const std::shared_ptr<Owner>& owner,
        libtorch::ThreadState& thread)
      : Scope(state, undo) {
    if (undoes_) begin(std::shared_ptr<Undo>(owner, &undo), thread);
  }
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // The run is over; it saved `saves` tensors, or went to its end (kToTheEnd). True if it did not
  // write to state to which forward had written by then, so that it must be run again: a function
  // that fills a cache once, and knows by a flag of its own that it did. From then on that state is
  // for recomputations as it is.
  bool was_wrong(std::size_t saves);
  static constexpr std::size_t kToTheEnd = static_cast<std::size_t>(-1);

 private:
  Scope(ReplayState& state, Undo& undo);
  void begin(std::shared_ptr<Undo> undo, libtorch::ThreadState& thread);
  void turn_back();
  void put_back();

  ReplayState& state_;
  Undo& undo_;
  bool undoes_ = false;
  std::optional<libtorch::AmbientScope> ambient_;
  std::unique_lock<std::mutex> lock_;
  RandomState default_before_;
  RandomState own_before_;
  std::optional<libtorch::FreshMemory> fresh_;
  std::optional<libtorch::EffectScope> effects_;
};

}  // namespace reprise::region
