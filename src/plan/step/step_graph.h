// A step as planners with hindsight see it: operators in order, what each reads and makes, and what
// must be there at the end. Out of a trace (trace.h); what the program let go of, and when, does
// not matter here: a plan keeps what will be read.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/trace/trace.h"

namespace reprise::plan {

class StepGraph {
 public:
  using Index = std::uint32_t;

  // One way to look at a storage; made by one operator.
  struct Tensor {
    Index op = 0;
    Index storage = 0;
    bool is_view = false;
  };

  // Memory that one operator makes.
  struct Storage {
    std::int64_t bytes = 0;
    Index op = 0;
  };

  // With a store that moves so many bytes a second each way, what operators make may be loaded from
  // it instead of being recomputed; 0: there is none.
  // `beside`: of each slot (graph_plan.h), bytes that are there whatever the plan; empty: none.
  explicit StepGraph(const Trace& trace, double store_bytes_per_second = 0,
                     std::vector<std::int64_t> beside = {});

  bool has_store() const { return !transfer_nanoseconds_.empty(); }
  // What it makes can be offloaded and loaded: memory of its own, and no views of others'.
  bool can_load(Index op) const { return has_store() && transfer_nanoseconds_[op] >= 0; }
  // Of all that it makes, one way.
  std::int64_t transfer_nanoseconds(Index op) const { return transfer_nanoseconds_[op]; }
  void forget_store() { transfer_nanoseconds_.clear(); }

  // A step whose two halves are compiled apart: the second half begins at operator `half`. Only
  // operators of the first half run again, and only in the second half. Unless `repeats`, each does
  // so at most once, and before the second half's first read of what it makes: a value is either
  // handed over or recomputed.
  void split_at(Index half, bool repeats) {
    half_ = half;
    repeats_ = repeats;
  }
  bool is_split() const { return half_ != kNoHalf; }
  bool runs_again_once() const { return is_split() && !repeats_; }
  Index half() const { return half_; }

  Index operators() const { return static_cast<Index>(nanoseconds_.size()); }
  std::int64_t nanoseconds(Index op) const { return nanoseconds_[op]; }
  std::int64_t nanoseconds() const { return all_nanoseconds_; }
  // Tensors, each once, and not those on constants, which are always there.
  std::span<const Index> reads(Index op) const { return reads_.of(op); }
  // Storages that it makes.
  std::span<const Index> makes(Index op) const { return makes_.of(op); }
  // Tensors that it makes, on storages of its own or others', but for views of constants.
  std::span<const Index> results(Index op) const { return results_.of(op); }
  const Tensor& tensor(Index tensor) const { return tensors_[tensor]; }
  const Storage& storage(Index storage) const { return storages_[storage]; }
  Index tensors() const { return static_cast<Index>(tensors_.size()); }
  Index storages() const { return static_cast<Index>(storages_.size()); }
  // Operators that read the tensor, in order.
  std::span<const Index> readers(Index tensor) const { return readers_.of(tensor); }
  // Tensors on the storage, the views after what they are views of.
  std::span<const Index> tensors_on(Index storage) const { return tensors_on_.of(storage); }
  // Tensors that must be there when the step ends, each once.
  const std::vector<Index>& kept() const { return kept_; }
  bool is_kept(Index tensor) const { return is_kept_[tensor]; }
  // Of what is there in any plan, in the slot before that operator, and while it runs.
  std::int64_t fixed_bytes(Index slot) const { return fixed_[slot]; }

 private:
  static constexpr Index kNoHalf = std::numeric_limits<Index>::max();

  void price_transfers(double bytes_per_second);

  // Lists of numbers, one after another.
  struct Lists {
    std::vector<Index> begin{0};
    std::vector<Index> items;

    std::span<const Index> of(Index at) const {
      return std::span(items).subspan(begin[at], begin[at + 1] - begin[at]);
    }
    void close() { begin.push_back(static_cast<Index>(items.size())); }
  };

  static Lists inverse(const Lists& lists, std::size_t count);

  std::vector<std::int64_t> nanoseconds_;
  std::vector<std::int64_t> transfer_nanoseconds_;  // below 0: cannot be; empty: no store
  std::int64_t all_nanoseconds_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<Storage> storages_;
  Lists reads_, makes_, results_, readers_, tensors_on_;
  std::vector<Index> kept_;
  std::vector<std::int64_t> fixed_;
  std::vector<bool> is_kept_;
  Index half_ = kNoHalf;
  bool repeats_ = false;
};

}  // namespace reprise::plan
