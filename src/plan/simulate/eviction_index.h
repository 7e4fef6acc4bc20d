// Finds the value with (nearly) the lowest score among 100,000 and more, without looking at them:
// what an evictor needs that must choose within microseconds.
//
// A score that falls with staleness is  key / staleness,  where the key is the score of a value
// that was used one second ago: (own + neighbourhood) / bytes for the h_ heuristics, times the
// value's weight. Values whose keys agree to within a factor of kFactor share a bucket, and of a
// bucket the value that was used longest ago has the lowest score, to within that factor. There are
// some hundreds of buckets, however many values there are, and a choice compares what the lowest
// score in each may be: its lower bound divided by the staleness of its oldest value. Only values
// of the most promising buckets are looked at.
//
// Being up to date costs nothing until it matters. A use is noted in the entry alone, and costs
// that rise with the neighbourhood are not followed: an entry that is filed as too old or too cheap
// comes to the top of its bucket, is looked at, and is filed again. One that got cheaper would not:
// refresh() files it anew. (Evictors need not call it for each restored neighbour: simulated steps
// are as fast without.)
//
// What is guaranteed: the chosen score is at most kFactor times the lowest, where costs that fell
// were refreshed. For a heuristic of arbitrary shape it is the lowest of kSample entries drawn at
// random, as in DTR's prototype.
//
// Time: touch(), insert(), pin() O(1); remove(), refresh(), unpin() O(log n); choose() O(buckets),
// and O(log n) for each entry that it files again, at most one for each touch(), insert() or change
// of an entry's cost. Memory: some 50 bytes an entry in the entry, and 16 in arrays that double
// when they are full. Not for several threads at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "plan/simulate/heuristic.h"
#include "plan/simulate/least_table.h"
#include "plan/simulate/use_heap.h"

namespace reprise::plan {

// What a value carries to be in an index: a base or a member of it. Must stay where it is, and
// alive, while it is in one; the index may die before it or after it, but an entry that was not
// removed cannot go into another.
class EvictionEntry {
 public:
  EvictionEntry() = default;
  EvictionEntry(const EvictionEntry&) = delete;
  EvictionEntry& operator=(const EvictionEntry&) = delete;

  // Set by the owner before insert(); a later change needs refresh().
  double own_cost = 0;  // seconds
  std::int64_t bytes = 0;
  float weight = 1;  // above 0; single precision fits in without making entries larger

  double last_use() const { return last_use_; }
  bool is_in_index() const { return place_ != kNowhere; }
  bool is_pinned() const { return pins_ > 0; }

 private:
  friend class EvictionIndex;
  template <class>
  friend class UseHeap;

  static constexpr std::uint32_t kNowhere = 0xffffffff;
  static constexpr std::uint16_t kUnfiled = 0xffff;

  double last_use_ = 0;
  double filed_use_ = 0;            // as last_use_ was when the entry was filed
  std::uint32_t place_ = kNowhere;  // in the list of all, where there is one
  std::uint32_t heap_place_ = 0;
  std::uint16_t pins_ = 0;  // 65,535 at most
  std::uint16_t bucket_ = kUnfiled;
};

class EvictionIndex {
 public:
  static constexpr double kFactor = 1.125;
  static constexpr std::size_t kSample = 64;

  // Seconds of the entry's neighbourhood, as the heuristic's neighbourhood() says.
  using NeighbourhoodCost = std::function<double(const EvictionEntry&)>;

  // The heuristic must outlive the index. Without `neighbourhood_cost` it is 0. The seed decides
  // samples.
  explicit EvictionIndex(const EvictionHeuristic& heuristic,
                         NeighbourhoodCost neighbourhood_cost = {}, std::uint64_t seed = 0);
  EvictionIndex(const EvictionIndex&) = delete;
  EvictionIndex& operator=(const EvictionIndex&) = delete;

  // Times are seconds of any clock. An entry's last use may be earlier than that of others.
  void insert(EvictionEntry& entry, double last_use);
  // Takes the entry out, pinned or not, and ends its pins.
  void remove(EvictionEntry& entry);
  // The value was read or made; `now` is not before its last use.
  void touch(EvictionEntry& entry, double now) { entry.last_use_ = now; }
  // The costs of the value have changed; needed where they fell.
  void refresh(EvictionEntry& entry);

  // A pinned entry is never chosen. Pins nest.
  void pin(EvictionEntry& entry) { ++entry.pins_; }
  void unpin(EvictionEntry& entry) {
    if (--entry.pins_ == 0 && entry.bucket_ == EvictionEntry::kUnfiled) file(entry);
  }

  // The entry that should go; it stays in the index. Null if there is none that is not pinned.
  EvictionEntry* choose(double now);

  // The heuristic's score of the entry, times its weight.
  double score(const EvictionEntry& entry, double now) const;

  std::size_t size() const { return size_; }

 private:
  // Eight buckets to a power of two, from 2^-96 on: the first bits of the key as the processor
  // holds it. What lies outside goes to the first and the last one.
  static constexpr std::size_t kBuckets = 1024;

  EvictionCandidate candidate(const EvictionEntry& entry, double staleness) const;
  // The score after a second without use.
  double key(const EvictionEntry& entry) const;
  static std::uint16_t bucket_of(double key);
  void file(EvictionEntry& entry);
  void file_into(EvictionEntry& entry, std::uint16_t bucket);
  void unfile(EvictionEntry& entry);
  void note_top(std::size_t bucket);
  bool settle(std::size_t bucket, double now);
  void open(std::size_t bucket, double now);
  double least_score(std::size_t bucket, double now) const;
  EvictionEntry* choose_by_bucket(double now);
  EvictionEntry* choose_by_sample(double now);

  const EvictionHeuristic& heuristic_;
  NeighbourhoodCost neighbourhood_cost_;
  ScoreShape shape_;
  bool has_neighbourhood_;
  std::array<UseHeap<EvictionEntry>, kBuckets> buckets_;
  LeastTable<kBuckets>::Set filled_;
  std::array<double, kBuckets> oldest_{};  // as the tops were filed, side by side in memory
  LeastTable<kBuckets> least_;             // least_score() of what a choice has still to look at
  std::size_t size_ = 0;
  std::vector<EvictionEntry*> all_;  // to draw from, for a heuristic of arbitrary shape
  std::mt19937_64 random_;
};

}  // namespace reprise::plan
