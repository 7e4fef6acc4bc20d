// Sums of costs over groups of dropped values that touch each other, for h_eq: two groups become
// one in nearly constant time, and one value's group is found in nearly constant time.
//
// A group that loses a value is not split, which union-find cannot do; the value's own cost is
// subtracted and the rest stays together. This is the approximation of arXiv:2006.09616 (its
// h_DTR^eq). Slots of values that have left are used again as soon as no path leads through them,
// so memory follows the number of dropped values, not that of all drops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace reprise::plan {

class CostClasses {
 public:
  // A value's membership. Valid from add() to remove().
  using Node = std::uint32_t;
  static constexpr Node kNone = 0xffffffff;

  // A class of its own.
  Node add(double cost) {
    const Node node = take_slot();
    slots_[node] = {.cost = cost, .parent = node, .references = 1, .members = 1};
    return node;
  }

  // One class out of two; nothing if they are one already.
  void merge(Node a, Node b) {
    a = find(a);
    b = find(b);
    if (a == b) return;
    if (slots_[a].members < slots_[b].members) std::swap(a, b);
    slots_[a].cost += slots_[b].cost;
    slots_[a].members += slots_[b].members;
    slots_[b].parent = a;
    ++slots_[a].references;
  }

  // The same for two nodes exactly if they are of one class; changes with merge().
  Node find(Node node) {
    while (slots_[node].parent != node) {
      // Halving: each second step skips one, which shortens all later ways.
      const Node parent = slots_[node].parent;
      const Node grandparent = slots_[parent].parent;
      if (grandparent != parent) {
        slots_[node].parent = grandparent;
        ++slots_[grandparent].references;
        // It may have been the only way to the parent, which then goes, but not those above it.
        drop_reference(parent);
      }
      node = grandparent;
    }
    return node;
  }

  // The costs of the node's class.
  double cost(Node node) { return slots_[find(node)].cost; }

  // The value leaves, and takes `cost` along. Costs that rounding leaves behind go with the last.
  void remove(Node node, double cost) {
    slots_[find(node)].cost -= cost;
    drop_reference(node);
  }

  // Slots in use: members, and values that have left but still lie on a path.
  std::size_t size() const { return slots_.size() - free_.size(); }

 private:
  struct Slot {
    double cost;               // of the class, at its root
    Node parent;               // itself at the root
    std::uint32_t references;  // one of its value, and one of each slot whose parent it is
    std::uint32_t members;  // that ever joined, at the root: the smaller tree hangs on the larger
  };

  Node take_slot() {
    if (free_.empty()) {
      slots_.emplace_back();
      return static_cast<Node>(slots_.size() - 1);
    }
    const Node node = free_.back();
    free_.pop_back();
    return node;
  }

  void drop_reference(Node node) {
    while (--slots_[node].references == 0) {
      free_.push_back(node);
      const Node parent = slots_[node].parent;
      if (parent == node) return;
      node = parent;
    }
  }

  std::vector<Slot> slots_;
  std::vector<Node> free_;
};

}  // namespace reprise::plan
