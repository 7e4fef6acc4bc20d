// Sees each operator call of a step: brings back what it reads, and records what it makes.
#pragma once

#include "libtorch/operator_interceptor.h"
#include "tape/tape.h"

namespace reprise::tape {

class Recorder final : public libtorch::OperatorInterceptor {
 public:
  Recorder(const BudgetOptions& options, const plan::Heuristic& heuristic)
      : options_(options), tape_(options, heuristic) {}

  void intercept(libtorch::OperatorCall& call) override;
  Tape& tape() { return tape_; }
  // For texts: what runs on this thread.
  static std::string current_operator();

 private:
  struct Begun;
  void note_gradient(const libtorch::OperatorCall& call);
  void begin(libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts, Begun& begun);
  void end(libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts, Begun& begun);

  const BudgetOptions options_;
  Tape tape_;
};

}  // namespace reprise::tape
