// StepTrace: a recorded training step, on which budgets can be tried without its tensors. It says
// how much slower the step would be in fewer bytes, and from where on it does not fit.
//
//   const auto trace = reprise::StepTrace::read("step.jsonl.gz");
//   const auto step =
//       trace.simulate({.budget = reprise::GB(4), .heuristic = reprise::Heuristic::kHEq});
//   std::cout << step.slowdown << '\n';   // 1.107
//
// Traces are operator logs in the format of simrd (Kirisame et al., Dynamic Tensor
// Rematerialization, arXiv:2006.09616; github.com/uwsampl/dtr-prototype): JSON with an event a
// line, plain or compressed by gzip. Simulating simrd's own logs gives simrd's figures. Bytes are
// those of the values; fragmentation and temporaries inside operators are not modelled.
//
// Objects are constant and cheap to copy. Any thread may simulate.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reprise {

namespace detail {
struct StepTraceAccess;
}

// Which value is dropped when bytes are needed: the one with the lowest score. In the scores, cost
// is the seconds that recomputing the value takes, and staleness the seconds since its last use.
enum class Heuristic : std::uint8_t {
  // (own cost + cost of the dropped values around it) / (bytes * staleness): follows the values
  // around it exactly, which is slow.
  kHDtr,
  // The same, with groups of dropped values approximated by union-find: the paper's h_DTR^eq.
  kHEq,
  // The same, counting only dropped values that must be recomputed before it. MemoryBudget's
  // default.
  kHUp,
  kHLocal,   // own cost / (bytes * staleness)
  kLru,      // the one that was not used for longest
  kLargest,  // the one with most bytes
  kRandom,   // any
};

// The names are "h_dtr", "h_eq", "h_up", "h_local", "lru", "largest" and "random".
std::string to_string(Heuristic heuristic);
// Throws UsageError, which lists the names, for another text.
Heuristic parse_heuristic(std::string_view name);
std::vector<std::string> heuristic_names();

struct SimulateOptions {
  // -- What is tried

  Bytes budget;  // for everything, parameters included
  // The default is the paper's, for comparison with its figures.
  Heuristic heuristic = Heuristic::kHEq;

  // -- When the simulation ends early

  // Ends when the step takes this many times as long. Just above the smallest budget that works, a
  // heuristic may recompute exponentially often.
  double slowdown_limit = 10;
  // Ends after this time of the simulation itself; zero: never. If whole chains are dropped,
  // heuristics that look around a value take a time that grows with the square of the operators.
  Seconds time_limit{0};

  // -- Rarely needed

  // false: look at every value for the lowest score, as simrd does. true: use the index of a
  // running step, whose choice is within an eighth of the lowest score.
  bool by_index = false;
  std::uint64_t seed = 0;  // for random draws
};

struct SimulatedStep {
  enum class Outcome {
    kFits,
    kOutOfMemory,  // an operator did not fit although everything droppable was dropped
    kTooSlow,      // beyond the slowdown limit
    kOutOfTime,    // beyond the time limit: it may fit or not
  };

  Outcome outcome = Outcome::kFits;
  // (base + recompute) / base; up to its end if the step did not fit.
  double slowdown = 1;
  Seconds recompute{};  // by operators that ran again
  Bytes peak;
  std::int64_t evictions = 0;       // values dropped for lack of bytes
  std::int64_t recomputations = 0;  // operators that ran again
  std::int64_t events = 0;          // in the trace
};

class StepTrace {
 public:
  // Reads a log of events, or the step as one JSON document (docs/planning.md); gzip may compress
  // either. Throws UsageError: "FILE:LINE: reason" for a wrong line of a log, "FILE:LINE: field:
  // reason" for a wrong field of a document, or the reason why the file cannot be read.
  static StepTrace read(const std::filesystem::path& file);
  // The same from memory; `origin` stands for the file in errors.
  static StepTrace parse(std::string_view text, const std::string& origin = "step");
  // The step as a document. parse() gives the same step again, except that constants exist from the
  // beginning and names that are no text are replaced.
  std::string json() const;

  // Throws UsageError for a heuristic that is no enumerator, a budget or time limit below zero, and
  // a slowdown limit below one.
  SimulatedStep simulate(const SimulateOptions& options) const;

  std::int64_t operators() const;  // that the step ran
  Seconds base() const;            // the time of these operators
  Bytes plain_peak() const;        // if no value is dropped before the program releases it
  Bytes floor() const;  // no budget can be below: constants, and one operator's inputs and results
  Bytes constants() const;  // parameters and inputs, which are never dropped

 private:
  friend struct detail::StepTraceAccess;
  struct Contents;
  explicit StepTrace(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  std::shared_ptr<const Contents> contents_;
};

}  // namespace reprise
