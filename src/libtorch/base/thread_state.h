// The state that reprise attaches to a thread, and that LibTorch carries to the threads that work
// for it.
//
// Hooks, regions and their flags are in force for a dynamic extent: between two points in one
// thread's execution, and in whatever autograd runs for that thread meanwhile, on device threads
// and in the pool for reentrant backward calls. A plain thread_local would be lost there. LibTorch
// has one channel that it copies with at::ThreadLocalState and that outsiders may use,
// c10::ThreadLocalDebugInfo; this state is an entry in it. States are immutable and form a stack: a
// scope pushes a changed copy and pops it.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace reprise {

enum class EarlyStop;
namespace detail {
struct GroupState;
class SkipTracker;
}  // namespace detail

namespace libtorch {

struct InterceptorLink;
class LimitKeeper;
struct LimitLink;

// Makes the hooks for one tensor that autograd is about to save; null saves it as without hooks.
class HookProvider {
 public:
  virtual ~HookProvider() = default;
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
};

class BatchStatistics;
class EffectObserver;
class DrawStream;

struct ThreadState final : c10::DebugInfoBase {
  // The innermost hook scope, and how many Python hooks were in force when it was opened: more of
  // them now means that Python's are the inner ones.
  std::shared_ptr<HookProvider> hooks;
  std::size_t python_hooks_below = 0;
  // The same of the program's own scopes: regions stand in `hooks` only.
  std::shared_ptr<HookProvider> program_hooks;
  std::size_t python_hooks_below_program = 0;
  // The innermost operator interceptor.
  std::shared_ptr<const InterceptorLink> interceptors;
  // Whose limits of memory this thread works within (limited_work.h).
  std::shared_ptr<const LimitLink> limits;
  // The path of names in force (reprise::named()).
  std::shared_ptr<const std::string> path;

  // The innermost observer of what operators write and draw (operator_effects.h).
  std::shared_ptr<EffectObserver> effects;
  // Operators draw from this stream in place of the default generators (draw_stream.h).
  std::shared_ptr<DrawStream> draws;
  // Running statistics of batch normalization go there (batch_statistics.h).
  std::shared_ptr<BatchStatistics> statistics;

  std::shared_ptr<detail::GroupState> group;
  // Layers stash and pop here (reprise/skip.h).
  std::shared_ptr<detail::SkipTracker> skips;
  std::optional<EarlyStop> early_stop;
  std::optional<bool> debug;
  bool checkpointing = false;
  bool recomputing = false;
  // The recomputation in force may have to be run once more.
  bool may_be_repeated = false;
  // It replays random draws.
  bool replays_draws = false;
  // Operators in force are reprise's own doing, of which no policy is asked.
  bool own_work = false;
  // Which lock for replays some caller of this work holds, possibly on another thread, and waits.
  // Whoever holds a later one takes no earlier one.
  enum class ReplayLock { kNone, kOfStage, kOfProcess };
  ReplayLock replaying = ReplayLock::kNone;
  // A lock in place of the process's, for regions that turn back memory alone: what they write to
  // belongs to one stage of a pipeline. Null: there is none.
  std::shared_ptr<std::mutex> replay_lock;

  ThreadState() = default;
  ThreadState(const ThreadState&) = default;
  ThreadState& operator=(const ThreadState&) = delete;

  // Opens a hook scope of the program's own, noting where Python's stack stands.
  void set_hooks(std::shared_ptr<HookProvider> provider);
  // Opens a region in place of the hook scopes around it.
  void set_region_hooks(std::shared_ptr<HookProvider> region);
  // Puts the program's own scopes back in force, past all regions.
  void use_program_hooks();
  // Adds a limit to those that the thread works within.
  void work_for(const LimitKeeper& keeper);
};

// The state of the calling thread; null where nothing is in force.
const ThreadState* current_state();
// A copy to be changed and pushed.
std::shared_ptr<ThreadState> copy_of_current_state();
// Whether the program has opened a hook scope around the caller, here or in Python.
bool is_in_program_hooks();

// Puts `state` in force until destroyed. Scopes of one thread must be destroyed in reverse order.
class ThreadStateScope {
 public:
  explicit ThreadStateScope(std::shared_ptr<ThreadState> state);
  ~ThreadStateScope();
  ThreadStateScope(const ThreadStateScope&) = delete;
  ThreadStateScope& operator=(const ThreadStateScope&) = delete;

  // For one that cannot keep to that order: it leaves the thread as it is, and gives what was in
  // force before it.
  std::shared_ptr<c10::ThreadLocalDebugInfo> leave();

 private:
  std::shared_ptr<c10::ThreadLocalDebugInfo> before_;
  bool is_left_ = false;
};

// Marks what runs inside as reprise's own work (ThreadState::own_work).
class OwnWorkScope {
 public:
  OwnWorkScope();

 private:
  std::optional<ThreadStateScope> scope_;
};

}  // namespace libtorch
}  // namespace reprise
