// Entries by time of use, the oldest on top: a pairing heap (Fredman, Sedgewick, Sleator, Tarjan
// 1986) whose links lie in the entries, so that nothing is allocated. push() takes constant time,
// pop() and erase() amortised O(log n).
//
// Entry has the members `double filed_use_` and `Entry *child_, *next_, *previous_`; what they hold
// is the heap's business while an entry is in one.
#pragma once

#include <utility>

namespace reprise::plan {

template <class Entry>
class UseHeap {
 public:
  bool empty() const { return top_ == nullptr; }
  Entry* top() const { return top_; }

  void push(Entry& entry) {
    entry.child_ = entry.next_ = entry.previous_ = nullptr;
    top_ = top_ ? join(top_, &entry) : &entry;
  }

  void pop() { top_ = joined_list(top_->child_); }

  void erase(Entry& entry) {
    if (&entry == top_) return pop();
    // The first child's `previous_` is its parent.
    (entry.previous_->child_ == &entry ? entry.previous_->child_ : entry.previous_->next_) =
        entry.next_;
    if (entry.next_) entry.next_->previous_ = entry.previous_;
    if (Entry* rest = joined_list(entry.child_)) top_ = join(top_, rest);
  }

 private:
  // Both are tops.
  static Entry* join(Entry* a, Entry* b) {
    if (b->filed_use_ < a->filed_use_) std::swap(a, b);
    b->previous_ = a;
    b->next_ = a->child_;
    if (a->child_) a->child_->previous_ = b;
    a->child_ = b;
    a->next_ = a->previous_ = nullptr;
    return a;
  }

  // One heap of a list of siblings: in pairs, then from the last pair to the first.
  static Entry* joined_list(Entry* first) {
    Entry* pairs = nullptr;
    while (first) {
      Entry* second = first->next_;
      Entry* rest = second ? second->next_ : nullptr;
      Entry* pair = second ? join(first, second) : first;
      pair->next_ = pairs;
      pairs = pair;
      first = rest;
    }
    Entry* all = nullptr;
    while (pairs) {
      Entry* rest = pairs->next_;
      pairs->next_ = pairs->previous_ = nullptr;
      all = all ? join(all, pairs) : pairs;
      pairs = rest;
    }
    return all;
  }

  Entry* top_ = nullptr;
};

}  // namespace reprise::plan
