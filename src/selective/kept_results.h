// What one selective region keeps between forward and its recomputation: results of operator calls,
// found again by operator and by the number of its call.
//
// Forward writes, one recomputation reads, and afterwards nothing is left. Each of the two also
// walks along the calls of forward: operator and shapes of the arguments of every call are noted
// (sixteen bytes a call), so that an answer that would not fit is refused, and a recomputation that
// failed can say where it left forward's path.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <reprise/random_state.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "selective/policy_rule.h"

namespace reprise {
class ParkedTensor;
}

namespace reprise::selecting {

// The results of one call.
struct KeptCall {
  // Among the calls of its operator, and among all.
  std::int64_t number = 0;
  std::size_t position = 0;
  c10::SmallVector<c10::IValue, 2> results;
  // Of the tensors among them, in order: versions; whether they required grad (custom functions
  // only); and what stands in a store instead (null where it does not; empty if nothing does).
  c10::SmallVector<std::uint32_t, 2> versions;
  // Tensors on the same memory that count their changes apart, with their versions: some operators
  // (_unsafe_view, in every linear layer) give back their argument's memory and do not say so.
  std::vector<std::pair<at::Tensor, std::uint32_t>> sharers;
  std::vector<bool> required_grad;
  std::vector<std::shared_ptr<ParkedTensor>> parked;
  std::uint64_t shapes = 0;
  // Where the call drew random numbers: the generators' states after it.
  RandomState random_after;
  bool must = false;
  bool gone = false;

  // Whether a tensor was changed in place since it was kept.
  bool is_changed() const;
  // For one more use: tensors of its own on the same memory.
  KeptCall copy() const;
};

// A copy of a result in which every tensor has gone through `f`.
template <class F>
c10::IValue mapped(const c10::IValue& value, F&& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const c10::IValue& element : value.toListRef()) list.push_back(f(element.toTensor()));
  return list;
}

// A tensor on the same memory and version counter, for autograd to start from.
at::Tensor alias_of(const at::Tensor& tensor);
// 0 for an undefined tensor.
std::uint32_t version_or_zero(const at::Tensor& tensor);

// The calls of one operator.
struct CallsOfOperator {
  const c10::FunctionSchema* schema = nullptr;
  std::optional<detail::Verdict> verdict;
  std::int64_t calls = 0;
  // In the order of their numbers. By pointer, since they are large to move.
  std::vector<std::unique_ptr<KeptCall>> kept;
  // Of the recomputation: calls so far, and the first of `kept` that is not behind them.
  std::int64_t calls_again = 0;
  std::size_t next_kept = 0;
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

  // Forward: a call begins. Fills in its number, position and shapes, and returns what the rule
  // says of every call of the operator.
  std::optional<detail::Verdict> begin_call(const c10::FunctionSchema& schema, std::uint64_t shapes,
                                            KeptCall& call);
  // Forward: keeps a call's results, within the limit if there is one. `worth` is what a byte of
  // it saves.
  void keep(const c10::FunctionSchema& schema, KeptCall call, const detail::ByteLimit* limit,
            Bytes bytes, double worth);

  // Forward: the result of a call that was not said to share memory. Notes it where it does.
  void note_sharer(const at::Tensor& result);
  // Forward is over: lets go of what was changed in place since it was kept and need not be kept.
  void drop_changed();

  // Recomputation.
  void begin_recomputation();
  // The next call of this operator: null if it is to be run, or was kept and is gone (`used_up`).
  KeptCall* next_call(const c10::FunctionSchema& schema, std::uint64_t shapes, bool& used_up);
  void drop_everything();
  // Starts to fetch what was offloaded, in the order in which it will be wanted.
  void prefetch();

  // Where the recomputation's calls first differed from forward's; empty if they did not.
  std::string first_difference() const;

 private:
  struct Call {
    const c10::FunctionSchema* schema;
    std::uint64_t shapes;
  };
  struct Limited {
    double worth;
    const c10::FunctionSchema* schema;
    std::int64_t number;
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
  void remove(const Limited& call);

  const std::shared_ptr<const detail::PolicyRule> rule_;
  std::vector<CallsOfOperator> operators_;
  std::vector<LimitedGroup> limited_;
  std::vector<Call> log_;
  std::size_t position_ = 0;
  std::string difference_;
  // What was offloaded, in the order of the calls, and how far prefetching has come.
  std::vector<std::weak_ptr<ParkedTensor>> to_fetch_;
  std::size_t fetched_ = 0;
};

// "aten::add.Tensor", for texts.
std::string name_of(const c10::FunctionSchema& schema);

// Numbers that differ for arguments of different shapes or dtypes, in all likelihood.
std::uint64_t shapes_of(at::ArrayRef<c10::IValue> arguments);

}  // namespace reprise::selecting
