// What a training step did, operator by operator, without its tensors: sizes, costs, who read what,
// and when the program let go of it. Budgets and heuristics are tried on traces (simulator.h).
//
// The format is that of simrd, the simulator of arXiv:2006.09616 (uwsampl/dtr-prototype): one JSON
// object a line, with these events. Numbers may be written as strings, as simrd's own logs do.
//
//   {"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}       what came before is left out; any other
//                                                         annotation has no effect
//   {"INSTRUCTION":"CONSTANT","NAME":"x1"}                a value without a producer, never
//                                                         dropped; must be followed by its MEMORY
//   {"INSTRUCTION":"MEMORY","NAME":"x1","MEMORY":"4096"}  its bytes
//   {"INSTRUCTION":"CALL","NAME":"mm","ARGS":["x1","x2"],"RESULT":["x3"],"TIME":"1500"}
//                                                         an operator call that took TIME
//                                                         nanoseconds; must be followed, for each
//                                                         result in turn, by its MEMORY and its
//                                                         ALIAS
//   {"INSTRUCTION":"ALIAS","NAME":"x3","ALIAS":"-1"}      the result is a view of that argument
//                                                         (from 0), or -1: it has memory of its own
//   {"INSTRUCTION":"MUTATE","NAME":"add_","ARGS":["x1","x2"],"MUTATE":[0],"TIME":"900"}
//                                                         the operator writes to those arguments:
//                                                         their names mean new values of the same
//                                                         size from here on
//   {"INSTRUCTION":"COPY","DST":"x4","SRC":"x3"}          another name, and holder, of the same
//                                                         tensor
//   {"INSTRUCTION":"COPY_FROM","DST":"x4","SRC":"x3"}     the name lets go of what it held and
//                                                         holds SRC
//   {"INSTRUCTION":"RELEASE","NAME":"x4"}                 the program lets go; a name that is not
//                                                         known is passed over, it may be older
//                                                         than START
//
// What is still held at the end is a result of the step: it must be there when the step ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::plan {

// A trace in the form that simulators and planners read: everything by index.
struct Trace {
  using Index = std::uint32_t;

  // Part of an index list.
  struct Range {
    Index begin = 0, end = 0;
    Index size() const { return end - begin; }
  };

  struct Operator {
    std::int64_t nanoseconds = 0;
    std::int64_t bytes = 0;  // of its results that have memory of their own
    Range arguments;         // of `arguments`; a tensor may occur twice
    Range results;           // tensors, by consecutive index
    Index name = 0;          // of `names`
    bool is_constant = false;
  };

  // One way to look at a value: the value as it was made, or a view.
  struct Tensor {
    Index producer = 0;
    Index value = 0;
    bool is_view = false;
  };

  // The contents of one storage at one version.
  struct Value {
    std::int64_t bytes = 0;
    Index producer = 0;
  };

  enum class Do : std::uint8_t {
    kRun,      // operator `subject`, for the first time
    kHold,     // the program holds tensor `subject` once more
    kKeep,     // tensor `subject` must be there from now on; made again if it is not
    kRelease,  // the program holds tensor `subject` once less
  };

  struct Event {
    Do what;
    Index subject;
  };

  std::vector<Operator> operators;
  std::vector<Tensor> tensors;
  std::vector<Value> values;
  std::vector<Index> arguments;
  std::vector<Event> events;
  std::vector<std::string> names;
  std::int64_t lines = 0;  // that were read

  std::int64_t nanoseconds() const;  // of all operators
};

// Reads a file, plain or compressed by gzip. Throws UsageError "FILE:LINE: reason" for a line that
// is not as above, and UsageError naming the file and the reason if it cannot be read.
Trace read_trace(const std::filesystem::path& file);

// The same from memory; `origin` stands for the file in errors.
Trace parse_trace(std::string_view text, const std::string& origin);

}  // namespace reprise::plan
