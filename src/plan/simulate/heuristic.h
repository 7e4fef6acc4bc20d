// Which value goes first when bytes are needed: the scores of Dynamic Tensor Rematerialization
// (Kirisame et al., arXiv:2006.09616), and what they are compared with there.
//
// A heuristic is arithmetic on a few numbers. Who asks it (the tape, the simulator) keeps those
// numbers; how the lowest score is found is in eviction_index.h.
#pragma once

#include <reprise/step_trace.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace reprise::plan {

// What is known about a value that may go.
struct EvictionCandidate {
  double own_cost = 0;            // seconds that making it again takes, its inputs being there
  double neighbourhood_cost = 0;  // seconds of the dropped values around it, as Neighbourhood says
  std::int64_t bytes = 0;         // what dropping it frees
  double staleness = 0;           // seconds since an operator last read or made it
  double weight = 1;              // above 0; what the score is multiplied by
};

// Which dropped values count as a candidate's neighbourhood. They are what would have to be made
// again before it, and what would need it to be made again.
enum class Neighbourhood {
  kNone,
  // Dropped values that touch each other are one class, whose costs are summed; the classes that
  // touch the candidate count, each once. Nearly constant time by union-find; a restored value
  // leaves its class, but the class is not split.
  kClasses,
  // Those that can be reached through dropped values alone, going only to inputs or only to
  // dependants: exact, by a walk.
  kWalk,
  // Of these only what has to be made before the candidate can be: what is downstream costs what it
  // costs, whether the candidate is there or made again for it.
  kUpstream,
};

// How a score depends on staleness, which is what lets an index find the lowest one without looking
// at every value.
enum class ScoreShape {
  kFallsWithStaleness,  // score(c) = score(c with a staleness of one second) / c.staleness
  kIgnoresStaleness,    // the score stays the same however long a value has not been used
  kArbitrary,           // anything else: the lowest of a sample is taken
};

// The value with the lowest score goes first. Implementations are constant: one object may serve
// several threads.
class EvictionHeuristic {
 public:
  EvictionHeuristic() = default;
  EvictionHeuristic(const EvictionHeuristic&) = delete;
  EvictionHeuristic& operator=(const EvictionHeuristic&) = delete;
  virtual ~EvictionHeuristic() = default;

  // Zero or above, infinity included, and never lower for a higher cost. Infinite for a candidate
  // that frees no bytes, and for one that was used just now if staleness counts. It knows nothing
  // of weights: who asks multiplies.
  virtual double score(const EvictionCandidate& candidate) const = 0;
  virtual std::string_view name() const = 0;
  virtual Neighbourhood neighbourhood() const { return Neighbourhood::kNone; }
  virtual ScoreShape shape() const { return ScoreShape::kFallsWithStaleness; }
};

// What is compared. A weight changes no shape: it is one factor at any staleness.
inline double weighed_score(const EvictionHeuristic& heuristic,
                            const EvictionCandidate& candidate) {
  return heuristic.score(candidate) * candidate.weight;
}

// The object behind each enumerator, here by its name (reprise/step_trace.h):
//   h_dtr    (own + neighbourhood by exact walk) / (bytes * staleness)
//   h_eq     the same with equivalence classes, the paper's h_DTR^eq
//   h_up     the same with what is upstream alone
//   h_local  own / (bytes * staleness)
//   lru      1 / staleness
//   largest  1 / bytes
//   random   the same for all: any may go; with weights the least weight of those that are drawn
// Throws UsageError for a value that is no enumerator.
std::unique_ptr<EvictionHeuristic> make_heuristic(Heuristic kind);

}  // namespace reprise::plan
