#include "plan/step/min_cut.h"

#include <algorithm>

namespace reprise::plan {
namespace {

constexpr MinCut::Node kSource = 0, kSink = 1;
// Of what would flow: less is noise of rounding.
constexpr double kLeast = 1e-9;

}  // namespace

void MinCut::connect(Node from, Node to, double capacity) {
  edges_of_[from].push_back(static_cast<std::uint32_t>(edges_.size()));
  edges_.push_back({to, capacity});
  edges_of_[to].push_back(static_cast<std::uint32_t>(edges_.size()));
  edges_.push_back({from, 0});
}

double MinCut::solve() {
  double flow = 0;
  while (find_levels()) {
    next_.assign(edges_of_.size(), 0);
    while (const double more = push(kSource, kUnlimited)) flow += more;
  }
  return flow;
}

bool MinCut::find_levels() {
  level_.assign(edges_of_.size(), -1);
  level_[kSource] = 0;
  std::vector<Node> open{kSource};
  for (std::size_t i = 0; i < open.size(); ++i) {
    for (const std::uint32_t e : edges_of_[open[i]]) {
      if (edges_[e].left <= kLeast || level_[edges_[e].to] >= 0) continue;
      level_[edges_[e].to] = level_[open[i]] + 1;
      open.push_back(edges_[e].to);
    }
  }
  return level_[kSink] >= 0;
}

// One path, found without recursion: chains of operators are long.
double MinCut::push(Node node, double most) {
  std::vector<std::uint32_t> path;
  while (node != kSink) {
    std::vector<std::uint32_t>& edges = edges_of_[node];
    std::uint32_t& at = next_[node];
    const auto leads_on = [&](std::uint32_t e) {
      return edges_[e].left > kLeast && level_[edges_[e].to] == level_[node] + 1;
    };
    while (at < edges.size() && !leads_on(edges[at])) ++at;
    if (at < edges.size()) {
      path.push_back(edges[at]);
      node = edges_[edges[at]].to;
      continue;
    }
    if (path.empty()) return 0;
    // A dead end: back, and past the edge that led here.
    node = edges_[path.back() ^ 1].to;
    path.pop_back();
    ++next_[node];
  }
  for (const std::uint32_t e : path) most = std::min(most, edges_[e].left);
  for (const std::uint32_t e : path) {
    edges_[e].left -= most;
    edges_[e ^ 1].left += most;
  }
  return most;
}

}  // namespace reprise::plan
