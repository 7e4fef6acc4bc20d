// OffloadScope: a scope in which the tensors that autograd saves go to a store (reprise/store.h) and
// come back, fetched ahead of time, when backward asks for them.
//
//   auto store = reprise::disk_store({.folder = "/scratch"});
//   {
//     reprise::OffloadScope scope(store);
//     loss = model->forward(x);
//   }
//   loss.backward();     // the scope need not be open any more
//
// What is parked
// - Memory, not tensors: the first tensor saved on a storage parks all of the storage, and every
//   other saved tensor on it (views; the same tensor saved twice) refers to that. Only where a
//   tensor covers less than a quarter of its storage (a batch cut out of a data set, a slice of
//   time) is that part parked alone.
// - Not parameters: leaves that require grad, and the views of them that autograd knows as such
//   (weight.t(), as linear layers save it). A tensor that requires no grad, a frozen weight say, is
//   like any other.
// - Not what is smaller than `min_bytes`; of a view below it that lies on larger memory, a copy is
//   kept, so that the rest can go.
// - Not tensors that the store does not take (Store::takes, Store::cannot_park).
// - Not what the operator that saves it has yet to write (the noise of rrelu).
// What is not parked is kept as autograd would. Memory that somebody else holds on to, as the
// user's own variables do, is not freed by parking it; it is then read where it is.
//
// In backward the first reader of parked memory fetches it, and the store is asked to fetch what
// was parked before it (backward reads in about the reverse order), as much as the store holds
// ahead. It stays in memory until each of the tensors on it has been read, but no more than `hold`
// bytes in all for the sake of a second reader; beyond that it is fetched again. When the last of
// the tensors is freed, as backward does without retain_graph, it leaves the store.
//
// Gradients are bitwise those of the plain step if the store is exact. retain_graph, second
// derivatives, several threads and device threads work. Changing a saved tensor in place is the
// error that it is without the scope.
//
// Scopes nest with SavedTensorHooksScope (reprise/saved_tensor_hooks.h), whose rules hold here: the
// innermost alone is asked. A region (reprise/checkpoint.h) inside the scope parks its arguments; a
// region around it recomputes nothing that the scope inside has parked.
//
// Errors: UsageError for a null store or sizes below zero. StoreError passes through the operator
// that saves, or through backward(); the graph can be dropped and the next step works.
#pragma once

#include <reprise/bytes.h>
#include <reprise/store.h>

#include <memory>

namespace reprise {

struct OffloadOptions {
  // Smaller tensors stay: moving them costs more than they hold.
  Bytes min_bytes = KiB(64);
  // What may be in memory, although backward has read it, because another saved tensor on the same
  // memory has not been read yet.
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
