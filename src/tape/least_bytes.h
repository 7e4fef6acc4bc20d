// The least bytes of a budget's steps: which of them are written down, and what comes of that.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "plan/simulate/heuristic.h"
#include "plan/simulate/online_step.h"

namespace reprise::tape {

class Tape;

class LeastBytes {
 public:
  // Under libtorch::limit_mutex(). Whether the next step is to be written down: the first two are,
  // as an optimizer makes its state in the first, and then those after one that had another number
  // of operators, a few times.
  bool wants_next() const;
  // A whole step.
  void step_ended(Tape& tape);

  // Of the step that was written down last; nothing where none was. On any thread.
  std::optional<Bytes> find(const plan::EvictionHeuristic& heuristic);
  // The same for a step of few calls, and nothing for a longer one that was not searched before:
  // who asks has the lock, and other threads' allocations wait.
  std::optional<Bytes> find_soon(const plan::EvictionHeuristic& heuristic);

 private:
  static constexpr int kFirst = 2;
  static constexpr int kMost = 16;
  // Whose search takes about a second.
  static constexpr std::size_t kFewCalls = 2000;

  std::mutex searching_;
  mutable std::mutex mutex_;  // of what follows
  std::shared_ptr<const plan::OnlineStep> step_;
  std::optional<Bytes> found_;
  // Under libtorch::limit_mutex().
  int written_ = 0;
  std::int64_t operators_ = 0;
  bool is_other_ = false;
};

}  // namespace reprise::tape
