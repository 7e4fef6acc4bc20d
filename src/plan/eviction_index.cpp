#include "plan/eviction_index.h"

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

double least_key(std::size_t bucket) {
  if (bucket == 0) return 0;
  return std::bit_cast<double>((kFirstBucket + bucket) << kBitsPerBucket);
}

// Calls f(i) for each bit that is set.
template <std::size_t kWords, class F>
void for_each_bit(const std::array<std::uint64_t, kWords>& words, F&& f) {
  for (std::size_t w = 0; w < kWords; ++w) {
    for (std::uint64_t bits = words[w]; bits != 0; bits &= bits - 1) {
      f(64 * w + static_cast<std::size_t>(std::countr_zero(bits)));
    }
  }
}

template <std::size_t kWords>
void set_bit(std::array<std::uint64_t, kWords>& words, std::size_t i, bool value) {
  const std::uint64_t bit = std::uint64_t{1} << (i % 64);
  words[i / 64] = value ? words[i / 64] | bit : words[i / 64] & ~bit;
}

}  // namespace

EvictionIndex::EvictionIndex(const Heuristic& heuristic, NeighbourhoodCost neighbourhood_cost,
                             std::uint64_t seed)
    : heuristic_(heuristic),
      neighbourhood_cost_(std::move(neighbourhood_cost)),
      shape_(heuristic.shape()),
      has_neighbourhood_(neighbourhood_cost_ && heuristic.neighbourhood() != Neighbourhood::kNone),
      random_(seed) {}

EvictionIndex::~EvictionIndex() {
  while (!all_.empty()) remove(*all_.back());
}

void EvictionIndex::insert(EvictionEntry& entry, double last_use) {
  entry.last_use_ = last_use;
  entry.place_ = static_cast<std::uint32_t>(all_.size());
  all_.push_back(&entry);
  // By its own cost: the neighbourhood is asked for if the entry gets to the top.
  const EvictionCandidate alone{entry.own_cost, 0, entry.bytes, 1};
  if (entry.pins_ == 0) file_into(entry, bucket_of(heuristic_.score(alone)));
}

void EvictionIndex::remove(EvictionEntry& entry) {
  unfile(entry);
  EvictionEntry* last = all_.back();
  all_[entry.place_] = last;
  last->place_ = entry.place_;
  all_.pop_back();
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
          .staleness = staleness};
}

double EvictionIndex::key(const EvictionEntry& entry) const {
  return heuristic_.score(candidate(entry, 1));
}

double EvictionIndex::score(const EvictionEntry& entry, double now) const {
  return heuristic_.score(candidate(entry, now - entry.last_use_));
}

std::uint16_t EvictionIndex::bucket_of(double key) {
  if (!(key < kInfinity)) return kBuckets - 1;
  if (key <= 0) return 0;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(key) >> kBitsPerBucket;
  if (bits <= kFirstBucket) return 0;
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(bits - kFirstBucket, kBuckets - 1));
}

void EvictionIndex::file(EvictionEntry& entry) { file_into(entry, bucket_of(key(entry))); }

void EvictionIndex::file_into(EvictionEntry& entry, std::uint16_t bucket) {
  entry.filed_use_ = entry.last_use_;
  entry.bucket_ = bucket;
  buckets_[bucket].push(entry);
  set_bit(filled_, bucket, true);
}

void EvictionIndex::unfile(EvictionEntry& entry) {
  if (entry.bucket_ == EvictionEntry::kUnfiled) return;
  buckets_[entry.bucket_].erase(entry);
  if (buckets_[entry.bucket_].empty()) set_bit(filled_, entry.bucket_, false);
  entry.bucket_ = EvictionEntry::kUnfiled;
}

// Files tops again that were used since they were filed, and takes out pinned ones, which are filed
// when their last pin goes. Whether the bucket's least score is still what it was taken for.
bool EvictionIndex::settle(std::size_t bucket, double now, Buckets& open) {
  for (;;) {
    EvictionEntry& top = *buckets_[bucket].top();
    if (top.pins_ == 0 && top.filed_use_ == top.last_use_) break;
    unfile(top);
    if (top.pins_ == 0) file_into(top, static_cast<std::uint16_t>(bucket));
    if (buckets_[bucket].empty()) break;
  }
  const double taken_for = least_[bucket];
  open_again(bucket, now, open);
  return !buckets_[bucket].empty() && least_[bucket] <= taken_for;
}

void EvictionIndex::open_again(std::size_t bucket, double now, Buckets& open) {
  const bool is_filled = !buckets_[bucket].empty();
  set_bit(open, bucket, is_filled);
  if (is_filled) least_[bucket] = least_score(bucket, now);
}

// No entry of the bucket has a lower one. The top may have been used since: that only raises it.
double EvictionIndex::least_score(std::size_t bucket, double now) const {
  if (shape_ == ScoreShape::kIgnoresStaleness) return least_key(bucket);
  const double staleness = now - buckets_[bucket].top()->filed_use_;
  return staleness > 0 ? least_key(bucket) / staleness : kInfinity;
}

EvictionEntry* EvictionIndex::choose(double now) {
  if (shape_ == ScoreShape::kArbitrary) return choose_by_sample(now);
  return choose_by_bucket(now);
}

// From the bucket on that may hold the lowest score, until no other may hold a lower one.
EvictionEntry* EvictionIndex::choose_by_bucket(double now) {
  Buckets open = filled_;
  for_each_bit(open, [&](std::size_t b) { least_[b] = least_score(b, now); });
  EvictionEntry* best = nullptr;
  double lowest = kInfinity;
  for (;;) {
    std::size_t bucket = kBuckets;
    for_each_bit(open, [&](std::size_t b) {
      if (bucket == kBuckets || least_[b] < least_[bucket]) bucket = b;
    });
    if (bucket == kBuckets || (best && least_[bucket] >= lowest)) return best;
    if (!settle(bucket, now, open)) continue;

    EvictionEntry& top = *buckets_[bucket].top();
    EvictionCandidate about = candidate(top, 1);
    const std::uint16_t right = bucket_of(heuristic_.score(about));
    if (right != bucket) {
      unfile(top);
      file_into(top, right);
      open_again(bucket, now, open);
      open_again(right, now, open);
      continue;
    }
    set_bit(open, bucket, false);
    about.staleness = now - top.last_use_;
    const double found = heuristic_.score(about);
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
