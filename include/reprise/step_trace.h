// Trying budgets on a recorded step, without its tensors: how much slower a step would be in fewer
// bytes, and where it stops to fit.
//
//   const auto trace = reprise::StepTrace::read("step.jsonl.gz");
//   const auto step = trace.simulate({.budget = reprise::GB(4), .heuristic = reprise::Heuristic::kHEq});
//   std::cout << step.slowdown << '\n';   // 1.107
//
// Traces are operator logs as simrd's (Kirisame et al., Dynamic Tensor Rematerialization,
// arXiv:2006.09616; github.com/uwsampl/dtr-prototype): JSON, an event a line, plain or compressed
// by gzip. A simulation of simrd's own logs gives simrd's figures. Bytes are those of the values;
// fragmentation and the temporaries inside operators are not modelled.
//
// Objects are constant and cheap to copy; any thread may simulate.
#pragma once

#include <reprise/bytes.h>

#include <chrono>
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

// Which value goes first when bytes are needed: the one with the lowest score. Cost is the seconds
// that making it again takes, staleness the seconds since it was last used.
//   h_eq     (own cost + that of the dropped values around it) / (bytes * staleness), groups of
//            dropped values approximated by union-find: the paper's h_DTR^eq
//   h_dtr    the same with groups followed exactly: slower to find
//   h_up     of the values around it only those that would have to be made before it: what a
//            MemoryBudget goes by unless told otherwise
//   h_local  own cost / (bytes * staleness)
//   lru      the one not used for longest
//   largest  the one with most bytes
//   random   any
enum class Heuristic : std::uint8_t { kHDtr, kHEq, kHUp, kHLocal, kLru, kLargest, kRandom };

// "h_up" and the like; parse_heuristic() throws UsageError, which lists the names, for another one.
std::string to_string(Heuristic heuristic);
Heuristic parse_heuristic(std::string_view name);
std::vector<std::string> heuristic_names();

struct SimulateOptions {
  // For everything, parameters included.
  Bytes budget;
  // The default is the paper's, for comparison with its figures.
  Heuristic heuristic = Heuristic::kHEq;
  // Gives up where the step takes this many times as long: just above the smallest budget
  // that works, a heuristic may recompute exponentially often.
  double slowdown_limit = 10;
  // Gives up after this time of its own: where whole chains are dropped, heuristics that look at
  // their neighbourhood take a time that grows with the square of the operators. Zero: never.
  Seconds time_limit{0};
  // How the lowest score is found. False: every value is looked at, as in simrd. True: by the index
  // that serves a running step, whose choice is within an eighth of the lowest score.
  bool by_index = false;
  std::uint64_t seed = 0;  // of what is drawn at random
};

struct SimulatedStep {
  enum class Outcome {
    kFits,
    kOutOfMemory,  // an operator did not fit although all that could go had gone
    kTooSlow,      // beyond the slowdown limit
    kOutOfTime,    // the simulation itself took the time limit: it may fit or not
  };

  Outcome outcome = Outcome::kFits;
  // (base + recompute) / base; up to where it ended, if it did not fit.
  double slowdown = 1;
  Seconds recompute{};  // of operators that were run again
  Bytes peak;
  std::int64_t evictions = 0;       // values that went for want of bytes
  std::int64_t recomputations = 0;  // operators that were run again
  std::int64_t events = 0;          // of the trace
};

class StepTrace {
 public:
  // A log of events, or the step as one JSON document, which docs/planning.md describes; either may
  // be compressed by gzip. Throws UsageError: "FILE:LINE: reason" for a line that is not an event
  // as it should be, "FILE:LINE: field: reason" for a field of a document, or the reason why the
  // file cannot be read.
  static StepTrace read(const std::filesystem::path& file);
  // The same from memory; `origin` stands for the file in errors.
  static StepTrace parse(std::string_view text, const std::string& origin = "step");
  // As a document. parse() gives the same step again, but that constants are there from the
  // beginning, and names that are no text are replaced.
  std::string json() const;

  // Throws UsageError for an unknown heuristic, a budget below zero, a slowdown limit below one
  // and a time limit below zero.
  SimulatedStep simulate(const SimulateOptions& options) const;

  std::int64_t operators() const;  // that the step ran
  Seconds base() const;            // that they took
  Bytes plain_peak() const;        // when nothing goes before the program lets go of it
  Bytes floor() const;  // what no budget can be below: constants, one operator's inputs and results
  Bytes constants() const;  // parameters and inputs, which never go

 private:
  friend struct detail::StepTraceAccess;
  struct Contents;
  explicit StepTrace(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  std::shared_ptr<const Contents> contents_;
};

}  // namespace reprise
