// Memory that an offload scope has parked, and the readers it has: the saved tensors on it.
//
// One OffloadedMemory stands for the contents of one storage, or of a part of one, at one version.
// It knows its storage weakly: while that lives, whoever holds it, readers read it in place. Locks:
// a memory's is held for its counts of readers, the ledger's for its tables, and neither while the
// store parks or loads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <reprise/offload.h>
#include <reprise/store.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace reprise::store {

class OffloadLedger;

class OffloadedMemory {
 public:
  // Parks `flat`, elements of the storage of `tensor`.
  OffloadedMemory(std::shared_ptr<OffloadLedger> ledger, const at::Tensor& tensor,
                  const at::Tensor& flat);
  ~OffloadedMemory();
  OffloadedMemory(const OffloadedMemory&) = delete;
  OffloadedMemory& operator=(const OffloadedMemory&) = delete;

  // One saved tensor's claim on the memory, as long as it may be read.
  class Reader {
   public:
    explicit Reader(std::shared_ptr<OffloadedMemory> memory);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // The storage that was parked, if it is still there.
    std::optional<c10::Storage> in_place() const { return memory_->in_place(); }
    // What was parked, as a row at the beginning of its storage.
    at::Tensor read() { return memory_->read(*this); }

   private:
    friend class OffloadedMemory;
    const std::shared_ptr<OffloadedMemory> memory_;
    std::uint64_t seen_ = 0;  // the last fetch that it has read
  };

  // Whether a tensor that is saved now would find the contents of its storage here.
  bool holds(const at::Tensor& tensor) const;

 private:
  friend class OffloadLedger;

  std::optional<c10::Storage> in_place() const;
  at::Tensor read(Reader& reader);
  at::Tensor fetch(Reader& reader);
  // A reader has read the last fetch, or never will.
  void count_reader(Reader& reader);
  // False if the store will not fetch more.
  bool prefetch();

  const std::shared_ptr<OffloadLedger> ledger_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const std::uint64_t identity_;  // of its memory
  const std::size_t storage_bytes_;
  const c10::VariableVersion counter_;
  const std::uint32_t version_;
  const std::unique_ptr<ParkedTensor> parked_;
  std::uint64_t order_ = 0;  // of parking

  std::mutex mutex_;
  int readers_ = 0;
  std::uint64_t fetches_ = 0;
  int unread_ = 0;      // readers that have not read the last fetch
  at::Tensor fetched_;  // it, for them
  std::atomic<bool> is_fetched_ = false;
};

// What all memory that one scope has parked has in common. The scope and the memory own it.
class OffloadLedger : public std::enable_shared_from_this<OffloadLedger> {
 public:
  OffloadLedger(std::shared_ptr<Store> store, const OffloadOptions& options)
      : store_(std::move(store)), options_(options) {}

  const OffloadOptions& options() const { return options_; }
  Store& store() { return *store_; }

  // All of the storage of `tensor`, parked once.
  std::shared_ptr<OffloadedMemory> park_storage(const at::Tensor& tensor);
  // The same if that has happened already; else null.
  std::shared_ptr<OffloadedMemory> find_storage(const at::Tensor& tensor);
  // A part of it, given as a row.
  std::shared_ptr<OffloadedMemory> park_part(const at::Tensor& tensor, const at::Tensor& flat);

 private:
  friend class OffloadedMemory;

  void remove(const OffloadedMemory& memory);
  // Asks the store for what was parked before `order`.
  void prefetch_before(std::uint64_t order);
  // Whether `bytes` more may be held for other readers; counts them if so.
  bool reserve(std::int64_t bytes);
  void give_back(std::int64_t bytes) { held_bytes_ -= bytes; }

  const std::shared_ptr<Store> store_;
  const OffloadOptions options_;
  std::atomic<std::int64_t> held_bytes_ = 0;

  std::mutex mutex_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::weak_ptr<OffloadedMemory>> in_order_;
  // The last to be parked of each storage, by its order.
  std::unordered_map<const c10::StorageImpl*, std::uint64_t> by_storage_;
};

}  // namespace reprise::store
