// Sees each operator call of a step: brings back what it reads, and records what it makes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "libtorch/operators/operator_interceptor.h"
#include "libtorch/operators/recorded_call.h"
#include "tape/accelerator.h"
#include "tape/tape.h"

namespace reprise::tape {

struct BegunCall;

class Recorder final : public libtorch::OperatorInterceptor {
 public:
  // `budget` has all the others, which are those of all its steps: work that a step has started may
  // have the recorder when the budget's owner is gone.
  Recorder(std::shared_ptr<const void> budget, const BudgetOptions& options,
           const plan::EvictionHeuristic& heuristic, libtorch::CallForms& forms,
           const Tape::Parts& parts, std::unique_ptr<ValueWeights::Step> weights)
      : budget_(std::move(budget)),
        options_(options),
        forms_(forms),
        tape_(options, heuristic, parts,
              weights ? std::make_shared<Weighing>(std::move(weights), *this) : nullptr) {}

  void intercept(libtorch::OperatorCall& call) override;
  bool intercept_function(detail::FunctionCall& call,
                          const std::function<void()>& proceed) override;
  void around_unseen(const std::function<void()>& run) override;
  Tape& tape() { return tape_; }
  // For texts: what runs on this thread.
  static std::string current_operator();
  // On whose tape; null outside of operators.
  static Tape* current_tape();

 private:
  void note_gradient(const libtorch::OperatorCall& call);
  void note_views(libtorch::OperatorCall& call);
  static void keep_shapes(const at::Tensor& tensor);
  void answer_for_dropped(libtorch::OperatorCall& call) const;
  bool is_little(const libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts,
                 const libtorch::CallForms::Found& found) const;
  void pass_by(libtorch::OperatorCall& call, libtorch::CallForm& form, BegunCall& begun,
               std::unique_lock<libtorch::LimitMutex>& lock);
  bool weighs() const;
  void weigh(const libtorch::OperatorCall& call, const BegunCall& begun);
  bool makes_much(const libtorch::OperatorCall& call, const BegunCall& begun) const;
  void begin(libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts, BegunCall& begun);
  static void begin_part(const c10::Storage& storage, bool is_written, BegunCall& begun);
  static void copy_at_once(libtorch::OperatorCall& call);
  void note_writes(libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts,
                   BegunCall& begun);
  void take_down(const libtorch::OperatorCall& call, BegunCall& begun);
  double run(libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts, BegunCall& begun,
             std::unique_lock<libtorch::LimitMutex>& lock);
  void end(libtorch::OperatorCall& call, const libtorch::OperatorFacts& facts, BegunCall& begun);

  const std::shared_ptr<const void> budget_;
  const BudgetOptions options_;
  libtorch::CallForms& forms_;
  Tape tape_;
};

}  // namespace reprise::tape
