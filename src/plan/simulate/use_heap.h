// Entries by time of use, the oldest on top: a heap with four children a node, in one array with
// the times beside the pointers. Entries are spread over memory, and an order kept in them would
// cost a cache miss for each that is compared: at 100,000 entries a pairing heap took a third
// longer.
//
// Entry has the members `double filed_use_`, which stays while it is in a heap, and
// `std::uint32_t heap_place_`, which is the heap's. All functions take O(log n), push() of an
// entry that is among the youngest O(1).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace reprise::plan {

template <class Entry>
class UseHeap {
 public:
  bool empty() const { return items_.empty(); }
  Entry* top() const { return items_.empty() ? nullptr : items_.front().entry; }

  void push(Entry& entry) {
    items_.emplace_back();
    sift_up(items_.size() - 1, {entry.filed_use_, &entry});
  }

  void erase(Entry& entry) {
    const std::size_t place = entry.heap_place_;
    const Item last = items_.back();
    items_.pop_back();
    if (last.entry == &entry) return;
    if (place > 0 && last.use < items_[parent(place)].use) {
      sift_up(place, last);
    } else {
      sift_down(place, last);
    }
  }

 private:
  static constexpr std::size_t kChildren = 4;

  struct Item {
    double use = 0;
    Entry* entry = nullptr;
  };

  static std::size_t parent(std::size_t place) { return (place - 1) / kChildren; }

  void put(std::size_t place, const Item& item) {
    items_[place] = item;
    item.entry->heap_place_ = static_cast<std::uint32_t>(place);
  }

  void sift_up(std::size_t place, const Item& item) {
    while (place > 0 && item.use < items_[parent(place)].use) {
      put(place, items_[parent(place)]);
      place = parent(place);
    }
    put(place, item);
  }

  void sift_down(std::size_t place, const Item& item) {
    for (;;) {
      const std::size_t first = kChildren * place + 1;
      if (first >= items_.size()) break;
      const std::size_t end = std::min(first + kChildren, items_.size());
      std::size_t oldest = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (items_[child].use < items_[oldest].use) oldest = child;
      }
      if (items_[oldest].use >= item.use) break;
      put(place, items_[oldest]);
      place = oldest;
    }
    put(place, item);
  }

  std::vector<Item> items_;
};

}  // namespace reprise::plan
