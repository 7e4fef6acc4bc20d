// Makes a Trace of events that name tensors, and refuses what cannot have happened. The reader
// feeds it lines; tests and benchmarks feed it programs.
//
// Every function throws UsageError, with a reason but without a place, for a name that is not
// known, is taken, or is held by nobody any more; the builder is then as it was.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plan/trace/trace.h"

namespace reprise::plan {

class TraceBuilder {
 public:
  // Of all calls together: 52 days.
  static constexpr std::int64_t kMostNanoseconds = std::int64_t{1} << 52;

  struct Result {
    std::string_view name;
    std::int64_t bytes = 0;
    std::int64_t view_of = -1;  // the argument that it is a view of; its bytes are then nobody's
  };

  void constant(std::string_view name, std::int64_t bytes);
  void call(std::string_view name, std::span<const std::string_view> arguments,
            std::span<const Result> results, std::int64_t nanoseconds);
  void mutate(std::string_view name, std::span<const std::string_view> arguments,
              std::span<const std::int64_t> written, std::int64_t nanoseconds);
  void copy(std::string_view to, std::string_view from);
  void copy_from(std::string_view to, std::string_view from);
  void release(std::string_view name);

  // Throws UsageError if no operator was called.
  Trace finish() &&;

 private:
  using Index = Trace::Index;

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  using Slot = Index;  // of a name, in the order in which names first occurred

  Slot known(std::string_view name) const;
  Index held(std::string_view name) const;
  void require_new(std::string_view name) const;
  Index begin_operator(std::string_view name, std::span<const std::string_view> arguments,
                       std::int64_t nanoseconds);
  void add_result(std::int64_t bytes, std::int64_t view_of);
  void bind(std::string_view name, Index tensor);
  void run();
  void let_go(Index tensor);

  Trace trace_;
  std::unordered_map<std::string, Slot, Hash, std::equal_to<>> slots_;
  std::unordered_map<std::string, Index, Hash, std::equal_to<>> operator_names_;
  std::vector<Index> bound_;         // the tensor of each slot
  std::vector<std::int64_t> holds_;  // of each tensor
  std::int64_t nanoseconds_ = 0, bytes_ = 0;
};

}  // namespace reprise::plan
