// Runs a recorded step in arithmetic, under a limit, by the rules of the tape: what is dropped, in
// which order values are restored, what is pinned meanwhile, and what replays take. The rules are
// those of src/tape/evictor.cpp, restorer.cpp, restore_order.cpp and packing.cpp; a change there
// belongs here, too.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/simulate/eviction_index.h"
#include "plan/simulate/heuristic.h"
#include "plan/simulate/online_step.h"
#include "plan/simulate/room_to_make.h"
#include "plan/simulate/union_find.h"

namespace reprise::plan {

struct OnlineOutcome {
  bool fits = false;
  std::int64_t peak = 0;
  std::int64_t replays = 0;
  std::int64_t drops = 0;
  // Where it did not fit.
  std::size_t event = 0;
};

class OnlineRun {
 public:
  using Index = OnlineStep::Index;
  static constexpr Index kNone = OnlineStep::kNone;
  struct Options {
    std::int64_t limit = 0;
    // More replays than that are as good as a refusal.
    std::int64_t most_replays = 0;
    // Seconds that scores see vary by so much, up and down: measurements do.
    double noise = 0;
    std::uint64_t seed = 0;
  };

  OnlineRun(const OnlineStep& step, const EvictionHeuristic& heuristic, const Options& options);
  // Once.
  OnlineOutcome run();

 private:
  struct Value : EvictionEntry {
    Index producer = kNone;
    std::vector<Index> readers;
    std::uint32_t depth = 0;
    std::int64_t beside = 0;
    std::uint32_t pins = 0;
    bool is_attached = false;
    bool has_bytes = false;
    bool has_bits = false;
    bool is_packable = false;
    bool is_parked = false;
    // Too small to be dropped: as long as the storage lives its bytes are among those beside
    // values.
    bool is_beside = false;
    CostClasses::Node node = CostClasses::kNone;
  };
  struct Producer {
    double again = 0;
    std::int64_t wanted = 0;  // outputs that are
    std::uint32_t met = 0;
  };
  // There is no room.
  struct Refused {};

  void carry_out(OnlineStep::Event event);
  void make(Index producer);
  void restore(Index value);
  void restore(Index target, bool is_careful);
  Index first_missing(Index producer) const;
  bool is_made_of(Index value, Index other);
  Index next_to_pin(Index producer, const std::vector<Index>& pinned);
  bool unpack(Index value);
  bool unpark(Index value);
  void replay(Index producer);
  void make_room(std::int64_t bytes);
  bool drop_one();
  bool drop_bits();
  void drop(Index value);
  void give_bytes(Index value);
  // Its bytes are free, or somebody else's.
  void take_bytes(Index value);
  void spare(Index value);
  bool is_of_use(Index value) const;
  bool is_lost(Index value) const { return !values_[value].has_bytes && !values_[value].has_bits; }
  void pin(Index value);
  void unpin(Index value);
  bool may_drop(Index value) const;
  void update_entry(Index value);
  void detach(Index value);
  void forget_if_unwanted(Index value);
  double neighbourhood(Index value);
  double classes_around(Index value);
  double upstream(Index value);
  double downstream(Index value);
  void note_dropped(Index value);
  void note_restored(Index value);
  Index index_of(const EvictionEntry& entry) const;

  const OnlineStep& step_;
  const Options options_;
  const Neighbourhood neighbourhood_;
  std::vector<Value> values_;
  std::vector<Producer> producers_;
  CostClasses classes_;
  EvictionIndex index_;
  std::vector<Index> packed_;
  std::vector<Index> met_;
  RoomToMake room_to_make_;
  std::vector<CostClasses::Node> seen_;
  std::uint32_t walks_ = 0;
  std::int64_t living_ = 0;
  std::int64_t beside_ = 0;
  std::int64_t tracked_ = 0;
  double recorded_ = 0;  // seconds, of the recorded step
  double replayed_ = 0;  // and of replays
  OnlineOutcome outcome_;
};

// The least limit, to within a thousandth, in which the step runs by these rules, whatever
// measurements of its seconds come to within some bounds.
std::int64_t least_bytes(const OnlineStep& step, const EvictionHeuristic& heuristic);

}  // namespace reprise::plan
