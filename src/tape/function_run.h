// A custom function that runs through reprise::apply in a step. What its operators read and draw
// tells whether it can be run again as a whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <reprise/random_state.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "libtorch/memory/fresh_memory.h"
#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_interceptor.h"
#include "tape/tape.h"
#include "tape/value.h"

namespace reprise::tape {

class FunctionRun {
 public:
  // `arguments`: pinned. Under the lock, on the thread that runs the function.
  // `random`: the state of the CPU's generator.
  FunctionRun(const Tape& tape, std::span<Value* const> arguments, RandomState random);
  static RandomState random_state();
  ~FunctionRun() { current = nullptr; }
  FunctionRun(const FunctionRun&) = delete;
  FunctionRun& operator=(const FunctionRun&) = delete;

  // The one that runs on this thread.
  inline static thread_local FunctionRun* current = nullptr;

  // An operator of the function's is called.
  void note(const libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts);
  // What it has made: younger than the call.
  bool has_made(const c10::Storage& storage) const;
  // Under the lock, when it has run: it has read its arguments and what it made, and written to
  // nothing else.
  bool can_run_again() const;
  // The state of the CPU's generator before, if it has drawn from it. Not under the lock: a thread
  // that draws may allocate while it has the generator.
  std::optional<std::pair<at::Generator, RandomState>> drawn() const;

 private:
  struct Argument {
    const Cell* cell;
    const Value* value;
  };

  const Tape& tape_;
  c10::SmallVector<Argument, 4> arguments_;
  const std::uint64_t first_;
  const libtorch::FreshMemory fresh_;
  const RandomState random_;
  bool is_repeatable_ = true;
};

}  // namespace reprise::tape
