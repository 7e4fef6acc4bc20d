// What a budget says where it has no room: which bytes are live that cannot be dropped, class by
// class, and how many would do.
#pragma once

#include <reprise/bytes.h>
#include <reprise/error.h>

#include <cstdint>
#include <optional>
#include <string>

namespace reprise::tape {

class Tape;

// Values can be restored in another order, which may take less.
class NoRoom final : public BudgetError {
 public:
  NoRoom() : BudgetError("memory budget: there is no room to restore a tensor in this order") {
    ++times_thrown;
  }
  // How often on this thread. It may come back in another form, from an operator that is written in
  // another language.
  static std::uint64_t thrown() { return times_thrown; }

 private:
  inline static thread_local std::uint64_t times_thrown = 0;
};

// Live bytes that cannot be dropped now, by what has them. Together they are the live bytes.
struct LiveParts {
  // In storages that were there before the step: parameters, optimizer state, inputs.
  std::int64_t older = 0;
  std::int64_t gradients = 0;
  // Other results of the step that cannot be made again: of custom functions, of operators that
  // keep what they return, or of factories.
  std::int64_t unrepeatable = 0;
  // Read by the operator that runs or by a replay, or pinned by the program.
  std::int64_t in_use = 0;
  // Taken by the running operator, or by the replay for it, since its kernel began: results and
  // workspace.
  std::int64_t running = 0;
  // Below BudgetOptions::min_bytes, or read by pointer (Cell::is_read_by_pointer).
  std::int64_t small = 0;
  // Nobody holds them, and replays read them: tensors without a producer that have died.
  std::int64_t dead_roots = 0;
  std::int64_t packed_bits = 0;
  // Of what threads outside of steps allocated beside one; a tape tells, below zero, what of that
  // it has in another class.
  std::int64_t other_threads = 0;
  // Allocated by steps past operators: compiled graphs, other libraries.
  std::int64_t past_operators = 0;
  // Taken since the step began, and seen by nobody: results of small calls that nothing has read.
  std::int64_t unseen = 0;

  std::int64_t sum() const;
  LiveParts& operator+=(const LiveParts& more);
};

// Adds what the tape did not see to what tapes have told, so that the sum is `live`.
// `at_begin`: the live bytes when the step began; `running`: what the operator that runs has taken,
// as far as levels show it.
LiveParts completed(LiveParts seen, std::int64_t live, std::int64_t at_begin, std::int64_t running);

// While it lives, a kernel of the tape's step runs on this thread: what the level rises by is the
// kernel's.
class KernelRun {
 public:
  KernelRun(const Tape& tape, std::int64_t live);
  ~KernelRun();
  KernelRun(const KernelRun&) = delete;
  KernelRun& operator=(const KernelRun&) = delete;

  // Bytes that the innermost kernel of this thread has taken; 0 outside of kernels.
  static std::int64_t taken(std::int64_t live);

 private:
  const Tape& tape_;
  const std::int64_t live_, given_up_;
  const KernelRun* const outer_;
};

struct Refusal {
  Bytes limit;
  Bytes live;
  Bytes wanted;
  LiveParts parts;
  std::optional<Bytes> least = {};  // of a recorded step of the budget, where it is known
};

// Why `wanted` more bytes are not to be had, and what would do.
std::string text_of(const Refusal& refusal);

// What the end of a step would bring back.
struct FinishNeeds {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
  // Above what is live now, at the worst moment, without the workspaces of operators.
  std::int64_t most = 0;
  std::int64_t droppable = 0;  // of what is live, and held by nobody
};

std::string text_of_finish(const FinishNeeds& needs, Bytes limit, Bytes live);

// As to_string(), and never less than there is: what a text asks for has to suffice.
std::string rounded_up(Bytes bytes);

}  // namespace reprise::tape
