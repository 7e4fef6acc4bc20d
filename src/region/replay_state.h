// The state of the world around a region's function: taken when forward enters it, put back for the
// time of a recomputation. Random generators, autocast and other ambient state.
//
// Replaying random draws means turning back a generator that the whole process shares. So only
// regions that have drawn do it, and they exclude each other while they do. A recomputation may
// itself run backward, whose worker threads may recompute further regions while the first one waits
// for them; the lock therefore belongs to the extent of the replay, which LibTorch carries along
// (ThreadState), and not to a thread.
#pragma once

#include <reprise/checkpoint.h>
#include <reprise/random_state.h>

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "libtorch/ambient_state.h"

namespace reprise::region {

class ReplayState {
 public:
  ReplayState() = default;
  // Takes the state in force, for a region whose tensor arguments are `tensors`.
  ReplayState(const CheckpointOptions& options, at::TensorList tensors);
  // Forward is over: forgets generator states from which nothing was drawn.
  void end_forward();

  // Puts the state back until destroyed; then everything is as before. Generators from which
  // forward drew nothing are left alone.
  class Scope {
   public:
    explicit Scope(const ReplayState& state);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    bool replays_random() const { return replays_random_; }

   private:
    void put_back();

    std::optional<libtorch::AmbientScope> ambient_;
    std::unique_lock<std::mutex> lock_;
    RandomState default_before_;
    RandomState own_before_;
    bool replays_random_ = false;
  };

 private:
  // The states that the generators are in now.
  RandomState take_default() const;
  RandomState take_own() const;

  bool random_ = false;
  std::uint64_t restores_before_ = 0;
  std::vector<c10::Device> devices_;
  std::vector<at::Generator> generators_;
  RandomState default_state_;
  RandomState own_state_;
  std::optional<libtorch::AmbientState> ambient_;
};

}  // namespace reprise::region
