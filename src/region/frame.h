// One region: what forward leaves behind instead of activations, and how they come back.
//
// In forward the frame is the thread's hook provider: every tensor that autograd saves becomes a
// Placeholder, an index into the frame. The placeholders sit in the graph and own the frame, so
// that it lives exactly as long as somebody may ask for a tensor, and its arguments with it. The
// first question in a backward call runs the function again (Recomputation) and answers this and
// all further ones.
//
// Nesting follows from the hook stack alone: an inner region's tensors go to the inner frame, its
// arguments are saved through autograd and therefore go to the outer frame; reading a tensor of the
// inner region needs the inner arguments, which makes the outer region recompute first.
//
// Locks, in the order in which they may be taken: the run mutex of a recomputation (inner regions
// before outer ones; never the other way round, since only arguments are fetched under it), the
// process-wide lock for replays, and for moments the frame's own mutex.
#pragma once

#include <reprise/checkpoint.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/recycling_allocator.h"
#include "libtorch/autograd/zero_gradients.h"
#include "libtorch/base/leaving_errors.h"
#include "libtorch/base/thread_state.h"
#include "libtorch/operators/operator_trace.h"
#include "region/arguments.h"
#include "region/recomputation.h"
#include "region/replay_state.h"

namespace reprise::region {

class Placeholder;

class Frame final : public libtorch::HookProvider, public std::enable_shared_from_this<Frame> {
 public:
  // Saves the tensors among the arguments and takes the state of the world.
  Frame(const CheckpointOptions& options, std::shared_ptr<detail::RegionCall> call,
        at::TensorList tensors);

  // Runs the function for the first time.
  void run_forward(const CheckpointOptions& options);
  // As long as it lives, all that the function's first run needs is in force.
  class Forward {
   public:
    Forward(Frame& frame, const CheckpointOptions& options);
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;
    // The function has returned.
    void end();

   private:
    Frame& frame_;
    std::optional<ReplayState::Recording> recording_;
    std::optional<libtorch::ThreadStateScope> in_force_;
    ContextScope context_;
    std::optional<libtorch::OperatorTrace> trace_;
    std::optional<libtorch::CurrentOperatorScope> names_;
  };

  std::unique_ptr<libtorch::SavedVariableHooks> make_hooks() override;

  // Runs the function again now, ahead of backward, and drops the arguments. From then on every
  // placeholder has its tensor, as if autograd had saved it without a region, until the graph frees
  // it. Several backward calls may read it.
  void recompute_ahead();

  // Placeholders call these: a tensor is being saved; a tensor is wanted; the tensor will not be wanted
  // any more.
  std::size_t add(Placeholder& placeholder);
  at::Tensor fetch(const Placeholder& placeholder);
  void remove(std::size_t index);

  // Of CheckpointOptions::skip_zero_gradients: set once forward is done.
  void pass_zeros(std::shared_ptr<const libtorch::PassedByZeros> passed) {
    passed_ = std::move(passed);
  }

  // No tensor is waited for any more.
  bool is_done() const;

  bool checks_values() const { return determinism_check_ == DeterminismCheck::kValues; }

 private:
  class ForgetAtEnd;

  // Here, or in a region around.
  bool reads_nothing() const;
  // Drops what was recomputed under this key and not handed out.
  void forget(std::uint64_t key);
  std::shared_ptr<Recomputation> recomputation(std::uint64_t key);
  std::shared_ptr<Recomputation> made_ahead() const;
  void recompute(Recomputation& run);
  // False if the run turned out to start from the wrong state and must be repeated.
  bool run_again(Recomputation& run, detail::Tensors& arguments,
                 std::vector<std::string>& operators);
  void outlast_undo(Recomputation& run) const;
  AtLastSlot at_last_slot(std::size_t last_wanted) const;
  void check(const Recomputation& run, const std::vector<std::string>& operators) const;

  const std::shared_ptr<detail::RegionCall> call_;
  const std::string name_;
  const DeterminismCheck determinism_check_;
  EarlyStop early_stop_;
  bool debug_;
  Arguments arguments_;
  ReplayState replay_;
  std::unique_ptr<RegionContexts> contexts_;
  // What the context returned, while forward runs.
  void* forward_scope_ = nullptr;
  // The names in force.
  std::shared_ptr<const std::string> path_;
  std::vector<std::string> forward_operators_;

  mutable std::mutex mutex_;
  // Holds the tensors that recompute_ahead() has made.
  std::shared_ptr<Recomputation> ahead_;
  // By index; null once the placeholder is gone.
  c10::SmallVector<Placeholder*, 4> placeholders_;
  c10::SmallVector<std::pair<std::uint64_t, std::shared_ptr<Recomputation>>, 1> recomputations_;
  // In ticks: when the last tensor was saved, and how long forward went on from there.
  std::uint64_t last_save_ = 0;
  std::uint64_t tail_ = 0;
  std::atomic<bool> forward_completed_{false};
  std::shared_ptr<const libtorch::PassedByZeros> passed_;
  std::weak_ptr<Frame> outer_;  // the region that it is inside of
};

// Runs `call` as a region that is not reentrant, as detail::run_region() does, and returns its frame.
std::shared_ptr<Frame> run_in_frame(const CheckpointOptions& options,
                                    const std::shared_ptr<detail::RegionCall>& call);

// What autograd keeps in place of one saved tensor.
class Placeholder final : public libtorch::SavedVariableHooks, public Recycled<Placeholder> {
 public:
  explicit Placeholder(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  ~Placeholder() override;

  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override {
    return libtorch::with_leaving_errors([this] { return frame_->fetch(*this); });
  }

  const Metadata& metadata() const { return metadata_; }
  std::size_t index() const { return index_; }

  // Only with DeterminismCheck::kValues.
  struct Values {
    // None if the operator that saves it has yet to write it.
    std::optional<std::uint64_t> hash;
    std::string saved_by;
  };
  const Values* values() const { return values_.get(); }

 private:
  static constexpr std::size_t kNotAdded = static_cast<std::size_t>(-1);

  std::shared_ptr<Frame> frame_;
  std::size_t index_ = kNotAdded;
  Metadata metadata_;
  std::unique_ptr<Values> values_;
};

}  // namespace reprise::region
