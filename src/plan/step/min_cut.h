// The least cut of a directed graph with capacities between a source and a sink (Dinic's
// algorithm), with capacities that are numbers of the real line.
#pragma once

#include <cstdint>
#include <vector>

namespace reprise::plan {

class MinCut {
 public:
  using Node = std::uint32_t;

  // Nodes 0 to nodes - 1; 0 is the source, 1 the sink.
  explicit MinCut(std::size_t nodes) : edges_of_(nodes) {}

  static constexpr double kUnlimited = 1e300;
  void connect(Node from, Node to, double capacity);

  // The capacity of the cut. Once.
  double solve();
  // Afterwards, whether the node is on the source's side.
  bool is_with_source(Node node) const { return level_[node] >= 0; }

 private:
  struct Edge {
    Node to;
    double left;
  };

  bool find_levels();
  double push(Node node, double most);

  std::vector<Edge> edges_;  // each followed by its reverse
  std::vector<std::vector<std::uint32_t>> edges_of_;
  std::vector<std::int32_t> level_;
  std::vector<std::uint32_t> next_;
};

}  // namespace reprise::plan
