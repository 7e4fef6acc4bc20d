// How kept calls are answered in the recomputation; selective.h states the rules.
#include <reprise/error.h>
#include <reprise/store.h>

#include <algorithm>
#include <utility>

#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/autograd/stub_history.h"
#include "libtorch/memory/fresh_memory.h"
#include "libtorch/operators/operator_effects.h"
#include "selective/caching.h"
#include "selective/hooked_results.h"

namespace reprise::selecting {
namespace {

using libtorch::facts_of;
using libtorch::OperatorCall;

bool state_has(bool libtorch::ThreadState::*flag) {
  const auto* state = libtorch::current_state();
  return state != nullptr && state->*flag;
}

// What stands for one call.
struct Answer {
  // kDraw: what it drew into its argument is written there. kDone: what it writes is there already.
  enum class Kind { kRun, kRunUnmanaged, kResults, kDraw, kDone };
  Kind kind = Kind::kRun;
  c10::SmallVector<c10::IValue, 1> results = {};
  std::vector<std::shared_ptr<ParkedTensor>> parked = {};
  c10::SmallVector<bool, 1> required_grad = {};
  std::vector<Drawn> drawn = {};
  std::shared_ptr<const KeptDraw> draw = {};
  bool is_private = false;
};

class Answering final : public SelectiveInterceptor {
 public:
  Answering(std::shared_ptr<KeptResults> kept, SelectiveOptions options)
      : kept_(std::move(kept)),
        options_(std::move(options)),
        hands_out_copies_(options_.reuse || state_has(&libtorch::ThreadState::may_be_repeated)),
        replays_draws_(state_has(&libtorch::ThreadState::replays_draws)) {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    kept_->difference.clear();
    walk_ = kept_->begin_walk();
    prefetch();
  }

  void intercept(OperatorCall& call) override;
  void call_function(detail::FunctionCall& call) override;
  void on_save(std::size_t index) override {
    walking([&] { kept_->pass_save(walk_, index); });
  }

 private:
  template <class F>
  void walking(const F& step);
  Answer answer_to(const c10::FunctionSchema& schema, std::uint64_t shapes);
  // Starts to fetch what was offloaded, in the order in which it will be wanted.
  void prefetch();
  void fetch(Answer& answer);
  void set_generators(const std::vector<Drawn>& drawn) const;

  const std::shared_ptr<KeptResults> kept_;
  const SelectiveOptions options_;
  // Kept results are wanted again after this run.
  const bool hands_out_copies_;
  const bool replays_draws_;
  // Guarded by the mutex of the kept results.
  Walk walk_;
  // Calls that were answered, and whose results were changed by what followed them.
  c10::SmallVector<const KeptCall*, 8> followed_;
};

template <class F>
void Answering::walking(const F& step) {
  std::lock_guard<std::mutex> lock(kept_->mutex);
  try {
    step();
  } catch (const DeterminismError&) {
    kept_->difference = walk_.difference;
    throw;
  }
  if (!walk_.difference.empty()) kept_->difference = walk_.difference;
}

std::string remedy_of_change(const KeptCall& kept) {
  if (kept.has_effects) {
    return "Its ordered effects must not happen again: change a copy of the result, or answer "
           "kMustRecompute";
  }
  if (kept.offloads) return "Answer kPreferCpuOffload, which recomputes it then";
  return std::string("Answer kPreferSave, which recomputes it then") +
         (kept.parked.empty() ? ", or set SelectiveOptions::allow_cache_entry_mutation to use the "
                                "changed value"
                              : "");
}

Answer Answering::answer_to(const c10::FunctionSchema& schema, std::uint64_t shapes) {
  KeptResults::Found next;
  walking([&] { next = kept_->next_call(walk_, schema, shapes); });
  std::lock_guard<std::mutex> lock(kept_->mutex);
  KeptCall* const found = next.kept;
  if (found == nullptr) return {};
  if (next.is_write) {
    // Where the call before it was made again, this one is, too.
    const bool is_in_it = std::ranges::count(followed_, found) != 0;
    return {.kind = is_in_it ? Answer::Kind::kDone : Answer::Kind::kRun};
  }
  if (found->runs_again) return {.kind = Answer::Kind::kRunUnmanaged};
  if (found->gone) {
    throw DeterminismError(
        "selective checkpoint: Trying to backward an extra time: the kept result of " +
        name_of(schema) +
        " was used by an earlier recomputation. A selective region can be recomputed once; for "
        "several backward calls (retain_graph, second derivatives) set SelectiveOptions::reuse, or "
        "make them share a GraphExecGroup");
  }
  // What was moved away may have been changed before or after it was read.
  const bool may_use_changed = options_.allow_cache_entry_mutation && found->parked.empty();
  if (!may_use_changed && found->watch.saw_change()) {
    if (!found->must && !found->has_effects) {
      return {.kind = found->is_function ? Answer::Kind::kRunUnmanaged : Answer::Kind::kRun};
    }
    throw DeterminismError("selective checkpoint: the kept result of " + name_of(schema) +
                           " has been mutated: it was changed in place after the operator returned "
                           "it. " +
                           remedy_of_change(*found));
  }
  Answer answer{.kind = found->draw != nullptr ? Answer::Kind::kDraw : Answer::Kind::kResults,
                .results = {},
                .parked = found->parked,
                .required_grad = found->required_grad,
                .drawn = found->drawn,
                .draw = found->draw,
                .is_private = found->is_private};
  // What is parked takes no memory: it stays, in case that loading fails and is tried again.
  if (hands_out_copies_ || !found->parked.empty() || !found->holds_memory()) {
    answer.results = found->copy_of_results();
  } else {
    answer.results = std::move(found->results);
    found->draw.reset();
    found->gone = true;
  }
  if (found->is_followed) {
    followed_.push_back(found);
    // The changes are counted again, which forward's tensors must not notice.
    for (c10::IValue& result : answer.results) {
      result = mapped(result, [](const at::Tensor& tensor) {
        return tensor.defined() ? libtorch::alias_with_own_counter(tensor) : tensor;
      });
    }
    answer.is_private = true;
  }
  return answer;
}

void Answering::prefetch() {
  for (; walk_.fetched < walk_.to_fetch.size(); ++walk_.fetched) {
    const auto parked = walk_.to_fetch[walk_.fetched].lock();
    if (parked != nullptr && !parked->prefetch()) return;
  }
}

void Answering::fetch(Answer& answer) {
  std::size_t next = 0;
  const libtorch::OwnWorkScope own;
  for (c10::IValue& result : answer.results) {
    result = mapped(result, [&](const at::Tensor& tensor) {
      const auto& parked = answer.parked[next++];
      return parked != nullptr ? parked->load() : tensor;
    });
  }
  std::lock_guard<std::mutex> lock(kept_->mutex);
  prefetch();
}

void Answering::set_generators(const std::vector<Drawn>& drawn) const {
  if (!replays_draws_) return;
  for (const Drawn& generator : drawn) {
    libtorch::tell_of_draw(generator.generator);
    generator.after.restore();
  }
}

void Answering::intercept(OperatorCall& call) {
  const auto& facts = facts_of(call.handle());
  if (is_ignored(call, facts)) return;
  Answer answer = answer_to(call.schema(), shapes_of(call.arguments()));
  if (answer.kind == Answer::Kind::kDraw || answer.kind == Answer::Kind::kDone) {
    const c10::IValue written = call.arguments()[facts.writes[0].argument];
    // Where it cannot be written, it is drawn again: the generator is as it was in forward.
    if (answer.draw != nullptr && !answer.draw->write_to(written.toTensor())) return;
    set_generators(answer.drawn);
    return call.answer(at::ArrayRef<c10::IValue>(written));
  }
  if (answer.kind != Answer::Kind::kResults) return;
  if (!answer.parked.empty()) fetch(answer);
  // Its changes are the recomputation's own, and not undone after it.
  if (answer.is_private) {
    visit_tensors(answer.results, [](const at::Tensor& tensor) {
      libtorch::FreshMemory::adopt(*tensor.storage().unsafeGetStorageImpl());
    });
  }
  set_generators(answer.drawn);
  call.answer(answer.results);
}

void Answering::call_function(detail::FunctionCall& call) {
  Answer answer = answer_to(schema_of_function(call.name), /*shapes=*/0);
  if (answer.kind == Answer::Kind::kRun) {
    const libtorch::WithoutInterceptor inside(*this, only_effects());
    return detail::call_function(call);
  }
  if (answer.kind != Answer::Kind::kResults) {
    const libtorch::WithoutInterceptor inside(*this);
    const PastRegionsScope saves(/*to_program_hooks=*/false);
    return detail::call_function(call);
  }
  if (!answer.parked.empty()) fetch(answer);
  set_generators(answer.drawn);
  std::vector<at::Tensor> results;
  for (const c10::IValue& result : answer.results) {
    const at::Tensor& tensor = result.toTensor();
    results.push_back(answer.required_grad[results.size()] ? libtorch::with_stub_history(tensor)
                                                           : tensor);
  }
  call.answer(std::move(results));
}

}  // namespace

std::shared_ptr<SelectiveInterceptor> make_answering(std::shared_ptr<KeptResults> kept,
                                                     SelectiveOptions options) {
  return std::make_shared<Answering>(std::move(kept), std::move(options));
}

}  // namespace reprise::selecting
