// Which values of a trace stand next to which: a value's inputs are what was read to make it (or a
// view of it), its users what was made by reading it. Built once for all simulations of a trace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/trace/trace.h"

namespace reprise::plan {

class ValueGraph {
 public:
  using Index = Trace::Index;

  // A neighbour, and the operator that made it one: before that has run, there is no link.
  // Constants are nobody's neighbours, for they are never dropped.
  struct Link {
    Index value;
    Index by;
  };

  explicit ValueGraph(const Trace& trace);

  std::span<const Link> inputs(Index value) const { return inputs_.of(value); }
  std::span<const Link> users(Index value) const { return users_.of(value); }

 private:
  struct Lists {
    std::vector<Index> begin;
    std::vector<Link> links;

    std::span<const Link> of(Index value) const {
      return std::span(links).subspan(begin[value], begin[value + 1] - begin[value]);
    }
  };
  struct Pair {
    Index from, to, by;
  };

  static std::vector<Pair> pairs(const Trace& trace);
  static Lists lists(std::span<const Pair> pairs, std::size_t values, bool by_input);

  Lists inputs_, users_;
};

}  // namespace reprise::plan
