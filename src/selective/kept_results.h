// What one selective region keeps between forward and its recomputation: results of operator calls,
// in the order of the calls.
//
// Forward notes every call (operator and shapes of its arguments, thirty-two bytes a call), and
// where among the calls each tensor was saved for backward. A recomputation walks along these
// notes, and is in step with them at every save. In between, a call that is where forward made it
// is answered; one that is not is looked for further on (a function may leave out what it did only
// once), and an answer that may be another call's is refused with an error.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <reprise/random_state.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/recycling_allocator.h"
#include "selective/kept_draw.h"
#include "selective/policy_rule.h"

namespace reprise {
class ParkedTensor;
}

namespace reprise::selecting {

// A copy of a result in which every tensor has gone through `f`.
template <class F>
c10::IValue mapped(const c10::IValue& value, F&& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const c10::IValue& element : value.toListRef()) list.push_back(f(element.toTensor()));
  return list;
}

template <class F>
void visit_tensors(at::ArrayRef<c10::IValue> values, F&& f) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      f(value.toTensor());
    } else if (value.isTensorList()) {
      for (const c10::IValue& element : value.toListRef()) f(element.toTensor());
    }
  }
}

// Notices that memory is changed in place, without holding it: every tensor on it counts its own
// changes and those of its views.
class ChangeWatch {
 public:
  // Watches a tensor's memory. Others on it are found by includes().
  void add(const at::Tensor& tensor);
  bool includes(const at::Tensor& tensor) const;
  // The tensor, which is on the memory, is about to count a change that is none.
  void expect_change(const at::Tensor& tensor);
  // Some operator writes past the counters (x.data().mul_(2)).
  void note_change() { noted_ = true; }
  bool saw_change() const;

 private:
  struct Counter {
    c10::VariableVersion counter;
    std::uint32_t version;
  };
  c10::SmallVector<Counter, 1> counters_;
  c10::SmallVector<c10::weak_intrusive_ptr<c10::StorageImpl>, 1> memory_;
  bool noted_ = false;
};

// A generator from which a kept call drew, and its state after the call.
struct Drawn {
  at::Generator generator;
  RandomState after;
};

// One call whose results are kept.
struct KeptCall final : Recycled<KeptCall> {
  std::size_t position = 0;
  c10::SmallVector<c10::IValue, 1> results;
  // In place of the tensors among the results, in order, where the policy offloads or hooks keep
  // them: null where one could not be parked and is kept. Empty where none was. The others are kept
  // beside only as long as changes may follow.
  std::vector<std::shared_ptr<ParkedTensor>> parked;
  ChangeWatch watch;
  std::vector<Drawn> drawn;
  // Calls that came right after it changed the results in place: those are kept as they were then,
  // and a recomputation does not make these calls.
  bool is_followed = false;
  // In place of results, of a call that drew into its argument in place.
  std::shared_ptr<const KeptDraw> draw;
  // Nobody else has the results, which a recomputation may change in place.
  bool is_private = false;
  // Of a custom function, whose saved tensors stay with its node: whether its results required
  // grad.
  bool is_function = false;
  c10::SmallVector<bool, 1> required_grad;
  // Of a custom function: its results are not kept after all. It runs again, as in forward past the
  // region's hooks.
  bool runs_again = false;
  bool must = false;
  // The policy offloads it.
  bool offloads = false;
  // Its operator has ordered effects: it is never run again.
  bool has_effects = false;
  // The results were handed out for good.
  bool gone = false;

  // Whether the results take memory, here or where they are parked.
  bool holds_memory() const;
  // Forgets `parked` if nothing is.
  void drop_empty_parked();
  // Lets go of the results that are parked.
  void release_parked();
  // The results for one more use: tensors of their own, on the same memory unless it is private.
  c10::SmallVector<c10::IValue, 1> copy_of_results() const;
};

// How far one recomputation has come along forward's calls.
struct Walk {
  std::size_t position = 0;
  // Tensors saved so far.
  std::size_t saves = 0;
  // Where it first left forward's path; empty if it did not.
  std::string difference;
  // Operators of which it was given kept results since the last save.
  c10::SmallVector<const c10::FunctionSchema*, 8> answered;
  // What was offloaded, in the order of the calls, and how far prefetching has come.
  std::vector<std::weak_ptr<ParkedTensor>> to_fetch;
  std::size_t fetched = 0;
};

class KeptResults {
 public:
  explicit KeptResults(std::shared_ptr<const detail::PolicyRule> rule);
  ~KeptResults();
  KeptResults(const KeptResults&) = delete;
  KeptResults& operator=(const KeptResults&) = delete;

  // Everything below is for callers that hold it.
  std::mutex mutex;

  const detail::PolicyRule& rule() const { return *rule_; }

  // Forward: a call begins.
  struct Begun {
    std::size_t position;
    // Among the calls of its operator.
    std::int64_t number;
    // What the rule says of every call of the operator, if it does.
    std::optional<detail::Verdict> verdict;
  };
  Begun begin_call(const c10::FunctionSchema& schema, std::uint64_t shapes);
  // Keeps a call's results, within the limit if there is one. `worth` is what a byte of it saves.
  void keep(std::unique_ptr<KeptCall> call, const detail::ByteLimit* limit, Bytes bytes,
            double worth);
  // The result of a call that was not said to share memory. Notes it where it does.
  // True if it is that of the call that was kept last.
  bool note_sharer(const at::Tensor& result);
  // A call is about to write to this memory. Returns the kept call whose result it is, if nothing
  // but views of it was made since and the write `may_follow`: then follow() it. Kept results that
  // are changed otherwise count as changed.
  const c10::FunctionSchema& schema_at(std::size_t position) const {
    return *log_[position].schema;
  }
  KeptCall* note_write(const at::Tensor& tensor, bool may_follow);
  void follow(KeptCall& kept, std::size_t position, const at::Tensor& written);
  // A call was made that may have read what was kept last.
  void close();
  // May be asked without the mutex: a function of several threads has no order anyway.
  bool is_open() const { return open_.load(std::memory_order_relaxed) != nullptr; }
  // A tensor is saved for backward.
  void note_save() {
    saves_.push_back(static_cast<std::uint32_t>(log_.size()));
    // It may be what an operator is about to change.
    close();
  }
  // Forward is over. Backward inside the function comes before that.
  void end_forward() {
    complete_ = true;
    close();
    drop_unread();
  }
  // Lets go of what was changed in place since it was kept and need not be kept.
  void drop_changed();

  // Recomputation.
  Walk begin_walk() const;
  // The kept results of the call that the walk comes to; null if it is to be run. Throws
  // DeterminismError where the operator's results are kept and it cannot be told which are meant.
  // One that has the place of a write that follows it gives nothing: the write is in it.
  struct Found {
    KeptCall* kept = nullptr;
    bool is_write = false;
  };
  Found next_call(Walk& walk, const c10::FunctionSchema& schema, std::uint64_t shapes) const;
  // The recomputation saves the tensor that forward saved as its number `index`. Throws like
  // next_call().
  void pass_save(Walk& walk, std::size_t index) const;
  // The recomputation will not be repeated.
  void drop_everything();

  // Where the last recomputation that did so left forward's path.
  std::string difference;

 private:
  struct Call {
    const c10::FunctionSchema* schema;
    std::uint64_t shapes;
    KeptCall* kept;
    // What it changed in place, and is in.
    KeptCall* followed;
  };
  struct CallsOfOperator {
    const c10::FunctionSchema* schema;
    std::int64_t calls;
    std::optional<detail::Verdict> verdict;
  };
  struct Limited {
    double worth;
    std::size_t position;
    Bytes bytes;
  };
  struct LimitedGroup {
    const detail::ByteLimit* limit;
    Bytes used;
    // A heap whose top is worth least.
    std::vector<Limited> members;
  };

  CallsOfOperator& calls_of(const c10::FunctionSchema& schema);
  bool fits(const Limited& call, const detail::ByteLimit& limit);
  // Lets go of what was kept after the last save and need not be kept: a recomputation has all that
  // backward needs by then, and stops.
  void drop_unread();
  void forget(std::size_t position);
  void remove(std::size_t position);
  std::size_t end_of_part(const Walk& walk) const;
  void leave_out(const Walk& walk, std::size_t position, const c10::FunctionSchema* wanted) const;
  void note_difference(Walk& walk, std::string_view now) const;

  const std::shared_ptr<const detail::PolicyRule> rule_;
  // Room for what a transformer block needs: growing step by step costs as much as operators do.
  c10::SmallVector<CallsOfOperator, 24> operators_;
  c10::SmallVector<Call, 64> log_;
  // By the number of the saved tensor: how many calls came before.
  c10::SmallVector<std::uint32_t, 48> saves_;
  std::vector<std::unique_ptr<KeptCall>> kept_;
  std::vector<LimitedGroup> limited_;
  bool complete_ = false;
  std::atomic<KeptCall*> open_ = nullptr;
};

// A tensor on the same memory and version counter, for autograd to start from.
at::Tensor alias_of(const at::Tensor& tensor);

// "aten::add.Tensor", for texts.
std::string name_of(const c10::FunctionSchema& schema);

// Numbers that differ for arguments of different shapes or dtypes, in all likelihood.
std::uint64_t shapes_of(at::ArrayRef<c10::IValue> arguments);

}  // namespace reprise::selecting
