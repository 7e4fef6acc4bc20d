// OffloadScope: inside it, the tensors that autograd saves are parked in a store (reprise/store.h).
// Backward loads them again, fetched ahead of time.
//
//   auto store = reprise::disk_store({.folder = "/scratch"});
//   {
//     reprise::OffloadScope scope(store);
//     loss = model->forward(x);
//   }
//   loss.backward();     // the scope may be closed by now
//
// The scope parks memory, not tensors. The first tensor saved on a storage parks the whole storage,
// and every other saved tensor on it (a view, the same tensor again) refers to that. Only if a
// tensor covers less than a quarter of its storage (a batch cut out of a data set, a slice of time)
// is its part parked alone. What is not parked is kept as autograd would keep it:
// - parameters: leaves that require grad, and views of them that autograd knows as views
//   (weight.t(), as linear layers save it); a frozen weight is parked like any other tensor;
// - tensors smaller than `min_bytes`; a small view of larger memory is copied, so that the rest can
//   be freed;
// - tensors that the store does not take (Store::takes, Store::cannot_park);
// - results that the saving operator has not written yet (the noise of rrelu).
//
// Parking frees no memory that somebody else still holds, such as a variable of the program. That
// memory is then read where it is.
//
// In backward the first reader of parked memory loads it. The store is asked to fetch what was
// parked before it, since backward reads in about the reverse order, as far as the store fetches
// ahead. The memory stays loaded until each tensor on it has been read, within
// OffloadOptions::hold. When its last tensor is freed, as backward does without retain_graph, it
// leaves the store.
//
// Gradients are bitwise those of the plain step if the store is exact. retain_graph, second
// derivatives, several threads and device threads work. A saved tensor that was changed in place is
// the error that it is without the scope.
//
// Scopes nest with SavedTensorHooksScope (reprise/saved_tensor_hooks.h), whose rules hold here:
// only the innermost is asked. A region (reprise/checkpoint.h) inside the scope parks its
// arguments. A region around the scope recomputes nothing that the scope has parked.
//
// Errors: UsageError for a null store and for sizes below zero. StoreError passes through the
// operator that saves, or through backward(). After it the graph can be dropped, and the next step
// works.
#pragma once

#include <reprise/bytes.h>
#include <reprise/store.h>

#include <memory>

namespace reprise {

struct OffloadOptions {
  // Smaller tensors are not parked: moving them costs more than it frees.
  Bytes min_bytes = KiB(64);
  // The most memory that stays loaded after a read for other saved tensors on it. Memory beyond
  // that is loaded again for each of them.
  Bytes hold = MiB(64);
};

class OffloadScope {
 public:
  explicit OffloadScope(std::shared_ptr<Store> store, const OffloadOptions& options = {});
  OffloadScope(std::shared_ptr<Store> store, Bytes min_bytes);
  ~OffloadScope();
  OffloadScope(const OffloadScope&) = delete;
  OffloadScope& operator=(const OffloadScope&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
