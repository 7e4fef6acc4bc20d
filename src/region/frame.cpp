#include "region/frame.h"

#include <reprise/error.h>

#include <algorithm>
#include <utility>

#include "core/ticks.h"
#include "libtorch/autograd/engine.h"
#include "libtorch/meta/on_meta.h"
#include "libtorch/operators/operator_effects.h"
#include "region/exec_group.h"
#include "region/foreign.h"
#include "region/texts.h"

namespace reprise::region {
namespace {

// Roughly what an exception costs that leaves the function through LibTorch's dispatcher. It
// decides about speed only: a wrong guess runs a short tail again, or leaves it dearly.
constexpr std::uint64_t kCostOfLeaving = 5 * kTicksPerMicrosecond;
// The same where the exception also passes through a guest language, whose caches are cold by then.
constexpr std::uint64_t kCostOfLeavingGuest = 50 * kTicksPerMicrosecond;

// Identifies one backward call or one group of them. Groups count down from the top.
constexpr std::uint64_t kNoKey = 0;

std::uint64_t key_of_caller() {
  if (const auto* state = libtorch::current_state(); state != nullptr && state->group != nullptr) {
    return state->group->key;
  }
  return static_cast<std::uint64_t>(libtorch::current_backward_id() + 1);
}

// When that backward call, or the group of them, is over.
void at_end_of_caller(std::function<void()> clean_up) {
  if (const auto* state = libtorch::current_state(); state != nullptr && state->group != nullptr) {
    state->group->at_end(std::move(clean_up));
  } else {
    libtorch::at_end_of_backward(std::move(clean_up));
  }
}

}  // namespace

Frame::Frame(const CheckpointOptions& options, std::shared_ptr<detail::RegionCall> call,
             at::TensorList tensors)
    : call_(std::move(call)),
      name_(options.name),
      determinism_check_(options.determinism_check),
      early_stop_(options.early_stop),
      debug_(options.debug),
      arguments_(tensors, options.allow_changed_arguments),
      replay_(options, tensors) {
  // Scopes win over options.
  if (const auto* state = libtorch::current_state(); state != nullptr) {
    early_stop_ = state->early_stop.value_or(early_stop_);
    debug_ = state->debug.value_or(debug_);
    path_ = state->path;
    if (const auto outer = std::dynamic_pointer_cast<Frame>(state->hooks)) outer_ = outer;
  }
}

std::unique_ptr<libtorch::SavedVariableHooks> Frame::make_hooks() {
  return std::make_unique<Placeholder>(shared_from_this());
}

std::size_t Frame::add(Placeholder& placeholder) {
  std::size_t index = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (early_stop_ != EarlyStop::kNever) last_save_ = ticks();
    index = placeholders_.size();
    placeholders_.push_back(&placeholder);
    replay_.note_saves(index + 1);
  }
  if (contexts_ != nullptr && contexts_->on_save) contexts_->on_save(forward_scope_, index);
  return index;
}

void Frame::remove(std::size_t index) {
  std::shared_ptr<Recomputation> ahead;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    placeholders_[index] = nullptr;
    ahead = ahead_;
  }
  if (ahead != nullptr) ahead->drop(index);
}

bool Frame::is_done() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(placeholders_.begin(), placeholders_.end(),
                     [](const Placeholder* placeholder) { return placeholder == nullptr; });
}

void Frame::recompute_ahead() {
  if (is_done()) return;
  auto run = std::allocate_shared<Recomputation>(RecyclingAllocator<Recomputation>());
  recompute(*run);
  run->done.store(true, std::memory_order_release);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ahead_ = std::move(run);
  }
  arguments_.drop();
}

bool Frame::reads_nothing() const {
  if (passed_ && passed_->reads_nothing()) return true;
  const auto outer = outer_.lock();
  return outer && outer->reads_nothing();
}

std::shared_ptr<Recomputation> Frame::made_ahead() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ahead_;
}

at::Tensor Frame::fetch(const Placeholder& placeholder) {
  if (reads_nothing()) return placeholder.metadata().of_nothing();
  at::Tensor tensor;
  if (const auto ahead = made_ahead(); ahead && ahead->look(placeholder.index(), tensor)) {
    return tensor;
  }
  const std::uint64_t key = key_of_caller();
  const std::shared_ptr<void> unlocked = foreign().unlock != nullptr ? foreign().unlock() : nullptr;
  const auto run = recomputation(key);
  std::lock_guard<std::mutex> lock(run->run_mutex);
  try {
    // A frame can have grown since: a function that runs backward inside, under one group.
    if (!run->done || placeholder.index() >= run->slots()) {
      recompute(*run);
      run->done.store(true, std::memory_order_release);
    }
    if (run->take(placeholder.index(), tensor)) return tensor;
  } catch (...) {
    run->clear();
    forget(key);
    throw;
  }
  const bool grouped = libtorch::current_state() != nullptr && libtorch::current_state()->group;
  refuse(
      *call_,
      {.kind = grouped ? Mismatch::Kind::kReadTwiceInGroup : Mismatch::Kind::kReadTwice,
       .text =
           name_of_region(name_) + ": saved tensor " + std::to_string(placeholder.index()) +
           " was already unpacked once in this " +
           (grouped ? "GraphExecGroup: two backward calls that overlap (that need the same saved "
                      "tensor) cannot share one group. Run them over disjoint parts of the graph, "
                      "or without the group."
                    : "backward call. A custom autograd function that reads its saved variables "
                      "more than once must keep what the first read returned.")});
}

// Callbacks of a backward call are run only if it succeeds, but they are destroyed in any case.
class Frame::ForgetAtEnd {
 public:
  ForgetAtEnd(std::weak_ptr<Frame> frame, std::uint64_t key)
      : frame_(std::move(frame)), key_(key) {}
  ~ForgetAtEnd() {
    if (const auto alive = frame_.lock()) alive->forget(key_);
  }
  ForgetAtEnd(const ForgetAtEnd&) = delete;
  ForgetAtEnd& operator=(const ForgetAtEnd&) = delete;

 private:
  std::weak_ptr<Frame> frame_;
  std::uint64_t key_;
};

std::shared_ptr<Recomputation> Frame::recomputation(std::uint64_t key) {
  std::shared_ptr<Recomputation> run;
  bool others_remain = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    others_remain = placeholders_.size() > 1;
    // Outside of backward there is no later question to answer: each one recomputes for itself.
    if (key != kNoKey) {
      for (const auto& [other, found] : recomputations_) {
        if (other == key) return found;
      }
    }
    run = std::allocate_shared<Recomputation>(RecyclingAllocator<Recomputation>());
    if (key == kNoKey) return run;
    const auto spent = [](const auto& entry) {
      return entry.second->done && entry.second->exhausted();
    };
    recomputations_.erase(std::remove_if(recomputations_.begin(), recomputations_.end(), spent),
                          recomputations_.end());
    recomputations_.emplace_back(key, run);
  }
  // A single tensor is about to be handed out: nothing can be left behind.
  if (!others_remain) return run;
  at_end_of_caller(
      [guard = std::make_shared<ForgetAtEnd>(weak_from_this(), key)]() mutable { guard.reset(); });
  return run;
}

void Frame::forget(std::uint64_t key) {
  // Declared before the lock so that tensors are freed after it is released.
  std::shared_ptr<Recomputation> run;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = recomputations_.begin(); entry != recomputations_.end(); ++entry) {
    if (entry->first != key) continue;
    run = std::move(entry->second);
    recomputations_.erase(entry);
    return;
  }
}

AtLastSlot Frame::at_last_slot(std::size_t last_wanted) const {
  switch (early_stop_) {
    case EarlyStop::kNever:
      return AtLastSlot::kGoOnCounting;
    case EarlyStop::kAlways:
    case EarlyStop::kWhenCheaper:
      break;
  }
  const bool tail_known = forward_completed_ && last_wanted + 1 == placeholders_.size();
  if (early_stop_ == EarlyStop::kAlways) {
    const bool may_finish =
        foreign().leave_afterwards != nullptr && tail_known && tail_ <= kCostOfLeavingGuest;
    return may_finish ? AtLastSlot::kLeaveAfterOperator : AtLastSlot::kLeave;
  }
  // An estimate's operators take no time worth the name, whatever they take on a device: what it
  // counts must not depend on that.
  const bool is_cheap = tail_known && tail_ <= kCostOfLeaving && !libtorch::is_on_meta();
  return is_cheap ? AtLastSlot::kGoOnUnhooked : AtLastSlot::kLeave;
}

void Frame::recompute(Recomputation& run) {
  std::vector<std::string> operators;
  // Once: tensors that an outer region gives are given once.
  detail::Tensors arguments = arguments_.unpack(*call_, name_);
  do {
    if (run.slots() != 0) run.clear();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::size_t last = placeholders_.size();
      while (placeholders_[last - 1] == nullptr) --last;
      run.start(placeholders_.size(), last - 1, at_last_slot(last - 1), checks_values());
      for (std::size_t i = 0; i < last; ++i) {
        if (placeholders_[i] != nullptr) run.want(i);
      }
    }
    if (!arguments_.may_change()) run.note_arguments(arguments);
  } while (!run_again(run, arguments, operators));
  if (contexts_ != nullptr && contexts_->recomputed && forward_completed_) contexts_->recomputed();
  check(run, operators);
}

bool Frame::run_again(Recomputation& run, detail::Tensors& arguments,
                      std::vector<std::string>& operators) {
  libtorch::RecordingScope recording;
  auto state = libtorch::copy_of_current_state();
  state->set_region_hooks(run.shared_from_this());
  state->checkpointing = false;
  state->recomputing = true;
  state->path = path_;
  // A backward inside the function comes before the one that the region is for.
  state->may_be_repeated = replay_.turns_memory_back() || !forward_completed_;
  state->replays_draws = replay_.replays_draws();
  ReplayState::Scope replay(replay_, run.undo(), state->hooks, *state);
  libtorch::ThreadStateScope in_force(std::move(state));
  const ContextScope context =
      contexts_ != nullptr && contexts_->recompute ? contexts_->recompute() : nullptr;
  if (contexts_ != nullptr && contexts_->on_save) {
    run.tell_saves_to(&contexts_->on_save, context.get());
  }
  std::optional<libtorch::OperatorTrace> trace;
  if (debug_) trace.emplace();
  // A run that goes to its end undoes what it switched by hand.
  std::optional<libtorch::AmbientMark> mark;
  if (run.may_be_left()) mark.emplace();
  // The run takes them; they are wanted again only if it may have to be repeated.
  detail::Tensors given = replay_.turns_memory_back() ? arguments : std::move(arguments);
  try {
    call_->run_again(given, nullptr);
  } catch (...) {
    if (mark) mark->put_back();
    if (replay.was_wrong(run.count())) return false;
    // Whatever became of StopRecomputation on its way (a Python frame turns it into another
    // exception), and whatever a caught one led to: the tensors are there.
    if (!run.left_early()) rethrow_for_engine(name_);
    outlast_undo(run);
    if (trace) operators = trace->lines();
    return true;
  }
  if (mark && run.left_early()) mark->put_back();
  if (trace) operators = trace->lines();
  if (replay.was_wrong(run.left_early() ? run.count() : ReplayState::Scope::kToTheEnd))
    return false;
  outlast_undo(run);
  return true;
}

// A context may hand out results that forward made, as torch's of selective checkpointing do, and the
// function writes to those. Without a context, a write to memory that forward left alone means that
// the function does something else than in forward: that stays autograd's error.
void Frame::outlast_undo(Recomputation& run) const {
  if (contexts_ != nullptr && contexts_->recompute) run.outlast_undo();
}

void Frame::check(const Recomputation& run, const std::vector<std::string>& operators) const {
  Mismatch mismatch;
  const auto fail = [&](Mismatch::Kind kind, const std::string& what) {
    const std::string explained =
        contexts_ != nullptr && contexts_->explain ? contexts_->explain() : std::string();
    mismatch.kind = kind;
    mismatch.text = name_of_region(name_) + ": " + what +
                    (explained.empty() ? "" : "\nThe first difference: " + explained + ".") +
                    (debug_ ? traces(forward_operators_, operators) : kDebugHint);
    refuse(*call_, mismatch);
  };
  std::string differing;
  std::string other_values;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool counted = early_stop_ == EarlyStop::kNever && forward_completed_;
    const std::size_t expected = placeholders_.size();
    if (!run.complete() || (counted && run.count() != expected)) {
      const bool more = run.count() > expected;
      mismatch.saved_before = expected;
      mismatch.saved_now = run.count();
      fail(more ? Mismatch::Kind::kMoreSaved : Mismatch::Kind::kFewerSaved,
           (more ? "recomputation tried to save more tensors than forward did: "
                 : "a different number of tensors was saved in forward and recomputation: ") +
               std::to_string(expected) + " in forward, " + std::to_string(run.count()) +
               " during recomputation.");
    }
    if (determinism_check_ == DeterminismCheck::kNone) return;
    for (std::size_t i = 0; i < expected; ++i) {
      const auto* saved = placeholders_[i] != nullptr ? run.saved(i) : nullptr;
      if (saved == nullptr) continue;
      const Placeholder& placeholder = *placeholders_[i];
      if (!placeholder.metadata().matches(saved->tensor)) {
        mismatch.differences.push_back(placeholder.metadata().difference(i, saved->tensor));
        differing += "\n  saved tensor " + std::to_string(i) + ": " +
                     placeholder.metadata().describe() + " in forward, " +
                     Metadata::of(saved->tensor).describe() + " during recomputation";
      } else if (const auto* values = placeholder.values(); values != nullptr && values->hash &&
                                                            *values->hash != saved->hash &&
                                                            other_values.empty()) {
        other_values = "saved tensor " + std::to_string(i) + " (" +
                       placeholder.metadata().describe() + ", saved by " + values->saved_by +
                       ") is the first whose values differ between forward and recomputation.";
      }
    }
  }
  if (!differing.empty()) {
    fail(Mismatch::Kind::kOtherMetadata,
         "recomputed tensors have different metadata than those saved in forward:" + differing);
  }
  if (!other_values.empty()) fail(Mismatch::Kind::kOtherValues, other_values);
}

namespace {

// oneDNN's recurrent layers save a block of bytes that they fill in part.
bool is_workspace(const at::Tensor& tensor, std::string_view saved_by) {
  return tensor.scalar_type() == at::kByte && saved_by.find("mkldnn_rnn_layer") != saved_by.npos;
}

}  // namespace

Placeholder::~Placeholder() {
  if (index_ != kNotAdded) frame_->remove(index_);
}

void Placeholder::call_pack_hook(const at::Tensor& tensor) {
  metadata_ = Metadata::of(tensor);
  if (frame_->checks_values()) {
    values_ = std::make_unique<Values>(Values{{}, libtorch::current_operator()});
    if (!libtorch::is_writing_to(tensor) && !is_workspace(tensor, values_->saved_by)) {
      values_->hash = hash_values(tensor);
    }
  }
  index_ = frame_->add(*this);
}

}  // namespace reprise::region
