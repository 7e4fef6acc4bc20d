#include "plan/simulate/eviction_index.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace reprise::plan {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMantissaBits = 52;
constexpr int kBitsPerBucket = kMantissaBits - 3;
constexpr std::uint64_t kFirstBucket = std::bit_cast<std::uint64_t>(0x1p-96) >> kBitsPerBucket;

// So many tops are compared, if so many may hold the lowest score. Among some hundred values this
// finds the lowest nearly always; among very many all buckets' tops have about the same score.
constexpr int kCompared = 4;

double least_key(std::size_t bucket) {
  return bucket == 0 ? 0 : std::bit_cast<double>((kFirstBucket + bucket) << kBitsPerBucket);
}

}  // namespace

EvictionIndex::EvictionIndex(const EvictionHeuristic& heuristic,
                             NeighbourhoodCost neighbourhood_cost, std::uint64_t seed)
    : heuristic_(heuristic),
      neighbourhood_cost_(std::move(neighbourhood_cost)),
      shape_(heuristic.shape()),
      has_neighbourhood_(neighbourhood_cost_ && heuristic.neighbourhood() != Neighbourhood::kNone),
      random_(seed) {}

void EvictionIndex::insert(EvictionEntry& entry, double last_use) {
  entry.last_use_ = last_use;
  ++size_;
  entry.place_ = 0;
  if (shape_ == ScoreShape::kArbitrary) {
    entry.place_ = static_cast<std::uint32_t>(all_.size());
    all_.push_back(&entry);
    return;
  }
  // By its own cost: the neighbourhood is asked for if the entry gets to the top.
  const EvictionCandidate alone{entry.own_cost, 0, entry.bytes, 1, entry.weight};
  if (entry.pins_ == 0) file_into(entry, bucket_of(weighed_score(heuristic_, alone)));
}

void EvictionIndex::remove(EvictionEntry& entry) {
  unfile(entry);
  if (shape_ == ScoreShape::kArbitrary) {
    EvictionEntry* last = all_.back();
    all_[entry.place_] = last;
    last->place_ = entry.place_;
    all_.pop_back();
  }
  --size_;
  entry.place_ = EvictionEntry::kNowhere;
  entry.pins_ = 0;
}

void EvictionIndex::refresh(EvictionEntry& entry) {
  if (entry.bucket_ == EvictionEntry::kUnfiled) return;
  const std::uint16_t bucket = bucket_of(key(entry));
  if (bucket == entry.bucket_) return;
  unfile(entry);
  file_into(entry, bucket);
}

EvictionCandidate EvictionIndex::candidate(const EvictionEntry& entry, double staleness) const {
  return {.own_cost = entry.own_cost,
          .neighbourhood_cost = has_neighbourhood_ ? neighbourhood_cost_(entry) : 0,
          .bytes = entry.bytes,
          .staleness = staleness,
          .weight = entry.weight};
}

double EvictionIndex::key(const EvictionEntry& entry) const {
  return weighed_score(heuristic_, candidate(entry, 1));
}

double EvictionIndex::score(const EvictionEntry& entry, double now) const {
  return weighed_score(heuristic_, candidate(entry, now - entry.last_use_));
}

std::uint16_t EvictionIndex::bucket_of(double key) {
  if (!(key < kInfinity)) return kBuckets - 1;
  if (key <= 0) return 0;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(key) >> kBitsPerBucket;
  if (bits <= kFirstBucket) return 0;
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(bits - kFirstBucket, kBuckets - 1));
}

void EvictionIndex::file(EvictionEntry& entry) {
  if (shape_ != ScoreShape::kArbitrary) file_into(entry, bucket_of(key(entry)));
}

void EvictionIndex::file_into(EvictionEntry& entry, std::uint16_t bucket) {
  entry.filed_use_ = entry.last_use_;
  entry.bucket_ = bucket;
  buckets_[bucket].push(entry);
  note_top(bucket);
}

void EvictionIndex::unfile(EvictionEntry& entry) {
  if (entry.bucket_ == EvictionEntry::kUnfiled) return;
  buckets_[entry.bucket_].erase(entry);
  note_top(entry.bucket_);
  entry.bucket_ = EvictionEntry::kUnfiled;
}

void EvictionIndex::note_top(std::size_t bucket) {
  const EvictionEntry* top = buckets_[bucket].top();
  filled_.set(bucket, top != nullptr);
  if (top) oldest_[bucket] = top->filed_use_;
}

// Files tops again that were used since they were filed, and takes out pinned ones, which are filed
// when their last pin goes. Whether the bucket's least score is still what it was taken for.
bool EvictionIndex::settle(std::size_t bucket, double now) {
  for (;;) {
    EvictionEntry& top = *buckets_[bucket].top();
    if (top.pins_ == 0 && top.filed_use_ == top.last_use_) break;
    unfile(top);
    if (top.pins_ == 0) file_into(top, static_cast<std::uint16_t>(bucket));
    if (buckets_[bucket].empty()) break;
  }
  const double taken_for = least_[bucket];
  open(bucket, now);
  return !buckets_[bucket].empty() && least_[bucket] <= taken_for;
}

// The choice has to look at the bucket, or look again.
void EvictionIndex::open(std::size_t bucket, double now) {
  if (buckets_[bucket].empty()) {
    least_.take_out(bucket);
  } else {
    least_.put(bucket, least_score(bucket, now));
  }
}

// No entry of the bucket has a lower one. The top may have been used since: that only raises it.
double EvictionIndex::least_score(std::size_t bucket, double now) const {
  // No less than nothing, so that dividing needs no branch.
  constexpr double kShortest = 1e-300;
  const double staleness =
      shape_ == ScoreShape::kIgnoresStaleness ? 1 : std::max(now - oldest_[bucket], kShortest);
  return least_key(bucket) / staleness;
}

EvictionEntry* EvictionIndex::choose(double now) {
  if (shape_ == ScoreShape::kArbitrary) return choose_by_sample(now);
  return choose_by_bucket(now);
}

// From the bucket on that may hold the lowest score, until no other may hold a lower one, or so
// many were compared that going on gains little. The first top that is filed as it should be is
// within the factor of the lowest score already.
EvictionEntry* EvictionIndex::choose_by_bucket(double now) {
  least_.fill(filled_, [&](std::size_t bucket) { return least_score(bucket, now); });
  EvictionEntry* best = nullptr;
  double lowest = kInfinity;
  for (int compared = 0;;) {
    const std::size_t bucket = least_.lowest();
    if (bucket == kBuckets) return best;
    const double enough = compared < kCompared ? 1 : kFactor;
    if (best && enough * least_[bucket] >= lowest) return best;
    if (!settle(bucket, now)) continue;

    EvictionEntry& top = *buckets_[bucket].top();
    EvictionCandidate about = candidate(top, 1);
    const std::uint16_t right = bucket_of(weighed_score(heuristic_, about));
    if (right != bucket) {
      unfile(top);
      file_into(top, right);
      open(bucket, now);
      open(right, now);
      continue;
    }
    least_.take_out(bucket);
    ++compared;
    about.staleness = now - top.last_use_;
    const double found = weighed_score(heuristic_, about);
    if (best && !(found < lowest)) continue;
    best = &top;
    lowest = found;
  }
}

EvictionEntry* EvictionIndex::choose_by_sample(double now) {
  EvictionEntry* best = nullptr;
  double lowest = kInfinity;
  const auto look_at = [&](EvictionEntry* entry) {
    if (entry->pins_ > 0) return;
    const double found = score(*entry, now);
    if (best && !(found < lowest)) return;
    best = entry;
    lowest = found;
  };
  for (std::size_t i = 0; i < kSample && !all_.empty(); ++i) look_at(all_[random_() % all_.size()]);
  if (best) return best;
  // Nearly all are pinned.
  for (EvictionEntry* entry : all_) {
    if (!best) look_at(entry);
  }
  return best;
}

}  // namespace reprise::plan
