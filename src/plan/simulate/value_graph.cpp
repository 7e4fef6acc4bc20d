#include "plan/simulate/value_graph.h"

#include <algorithm>

namespace reprise::plan {

ValueGraph::ValueGraph(const Trace& trace) {
  const std::vector<Pair> all = pairs(trace);
  inputs_ = lists(all, trace.values.size(), false);
  users_ = lists(all, trace.values.size(), true);
}

// In the order of operators, each pair of one operator once.
std::vector<ValueGraph::Pair> ValueGraph::pairs(const Trace& trace) {
  std::vector<Pair> all;
  for (Index by = 0; by < trace.operators.size(); ++by) {
    const Trace::Operator& op = trace.operators[by];
    const std::size_t first = all.size();
    for (Index a = op.arguments.begin; a < op.arguments.end; ++a) {
      const Index from = trace.tensors[trace.arguments[a]].value;
      if (trace.operators[trace.values[from].producer].is_constant) continue;
      for (Index t = op.results.begin; t < op.results.end; ++t) {
        const Index to = trace.tensors[t].value;
        if (from != to) all.push_back({from, to, by});
      }
    }
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    std::sort(begin, all.end(), [](const Pair& x, const Pair& y) {
      return x.from != y.from ? x.from < y.from : x.to < y.to;
    });
    all.erase(
        std::unique(begin, all.end(),
                    [](const Pair& x, const Pair& y) { return x.from == y.from && x.to == y.to; }),
        all.end());
  }
  return all;
}

// Counting sort, which keeps each list in the order of operators.
ValueGraph::Lists ValueGraph::lists(std::span<const Pair> pairs, std::size_t values,
                                    bool by_input) {
  Lists lists;
  lists.begin.assign(values + 1, 0);
  for (const Pair& each : pairs) ++lists.begin[(by_input ? each.from : each.to) + 1];
  for (std::size_t i = 1; i <= values; ++i) lists.begin[i] += lists.begin[i - 1];
  lists.links.resize(pairs.size());
  std::vector<Index> next(lists.begin.begin(), lists.begin.end() - 1);
  for (const Pair& each : pairs) {
    const Index owner = by_input ? each.from : each.to;
    lists.links[next[owner]++] = {by_input ? each.to : each.from, each.by};
  }
  return lists;
}

}  // namespace reprise::plan
