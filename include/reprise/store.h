// Stores: where the value of a tensor lives while nobody needs it. Park a tensor, let go of it, and
// get the same value back later; what happens in between (memory, a disk, a pinned host buffer) is
// the store's business.
//
//   auto store = reprise::disk_store({.folder = "/scratch"});
//   std::unique_ptr<reprise::ParkedTensor> parked = store->park(tensor);
//   tensor.reset();                     // its memory is free as soon as it has been written
//   parked->prefetch();                 // a hint: bring it back in the background
//   at::Tensor again = parked->load();  // the same bits, sizes, strides, dtype and device
//
// Contract, the same for every store (tests/store/contract_test.cpp runs it over all of them):
// - A value comes back with the bits, sizes, strides, dtype and device it had, whatever view it
//   was, without history and with requires_grad false. An inexact store (exact() is false) may
//   change floating-point values, and nothing else.
// - The parked tensor must not be changed in place while it is parked: a store may read it later,
//   or give back its memory. load() throws UsageError for one that was, as far as LibTorch's
//   version counter tells. In the same way what load() returns must not be written to: several
//   calls may share it.
// - Destroying the ParkedTensor drops the value, at any time, also while it is being moved.
// - StoreError, with the place and the bytes in its text, says that a value could not be parked or
//   brought back. Moving goes on in the background, so a failed write shows at that tensor's load()
//   or at a later park() of the store, whichever comes first. An error is told once; the store goes
//   on working, and a load() that failed may be tried again.
// - Any number of threads may use one store, and one ParkedTensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>
#include <reprise/error.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace reprise {

// One parked value. It keeps its store alive.
class ParkedTensor {
 public:
  ParkedTensor() = default;
  virtual ~ParkedTensor() = default;
  ParkedTensor(const ParkedTensor&) = delete;
  ParkedTensor& operator=(const ParkedTensor&) = delete;

  // The value; waits for it. Every call after the first may have to fetch it again.
  virtual at::Tensor load() = 0;

  // A hint that load() is about to be called: begins to fetch the value in the background, and
  // never waits. False if the store will not, because it holds as much ahead as it may, or has
  // nothing to do for it: the next ones need not be asked for now either.
  virtual bool prefetch() { return false; }

  // The size of the value: of the memory that holds its elements.
  virtual Bytes bytes() const = 0;
};

struct StoreStatistics {
  std::int64_t count = 0;  // values that are parked now
  Bytes parked;            // and their bytes()
  Bytes waiting;           // of them, still in the memory they came from until they are moved
  Bytes written;           // moved away from there, since the store was made
  Bytes read;              // and brought back
};

// A store of your own derives from this class and implements park_flat(), exact(), takes() and
// name(); docs/extending.md shows one. It is made with std::make_shared.
class Store : public std::enable_shared_from_this<Store> {
 public:
  Store() = default;
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Parks the value of `tensor`, which the store holds no longer than it needs to. May wait until
  // earlier values have been moved, where a store bounds the bytes that wait.
  // Throws UsageError for a tensor that the store cannot take (sparse, nested, quantized, without
  // memory; on another kind of device), StoreError if there is no room, or for an earlier failure.
  std::unique_ptr<ParkedTensor> park(const at::Tensor& tensor);

  // Whether every value comes back bit by bit.
  virtual bool exact() const = 0;
  // Whether tensors on `device` can be parked.
  virtual bool takes(c10::Device device) const = 0;
  // For texts: "disk store in /scratch".
  virtual std::string name() const = 0;
  // Waits until nothing is on its way. Throws StoreError for what could not be parked.
  virtual void flush() {}

  StoreStatistics statistics() const;

  // Why no store can park `tensor`; null if that is not so.
  static const char* cannot_park(const at::Tensor& tensor);

 protected:
  // Parks `flat`: one-dimensional, contiguous, not empty, without history. park() has brought the
  // tensor into this form, and load() gives the original form to what the ParkedTensor made here
  // returns. The store may keep `flat` itself. Its bytes are in place until park_flat() returns,
  // inside of a MemoryBudget's step too; who reads them by pointer later pins them
  // (reprise::Pin).
  virtual std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) = 0;

  // As park(), with `park_flat` in the place of the above: for a store that parks in several ways.
  std::unique_ptr<ParkedTensor> park_by(
      const at::Tensor& tensor,
      const std::function<std::unique_ptr<ParkedTensor>(const at::Tensor& flat)>& park_flat);

  // For statistics().
  void count_waiting(Bytes more) { waiting_ += more.count; }
  void count_written(Bytes bytes) { written_ += bytes.count; }
  void count_read(Bytes bytes) { read_ += bytes.count; }

 private:
  class Ticket;

  std::atomic<std::int64_t> count_ = 0;
  std::atomic<std::int64_t> parked_ = 0;
  std::atomic<std::int64_t> waiting_ = 0;
  std::atomic<std::int64_t> written_ = 0;
  std::atomic<std::int64_t> read_ = 0;
};

// Keeps the tensors where they are: for tests, and to switch a store off.
std::shared_ptr<Store> memory_store();

struct DiskStoreOptions {
  // An existing folder, on the disk to use. The store keeps one file there, which has no name: its
  // room is free again when the store is destroyed or the process ends, in whatever way. Until then
  // the file stays as large as it has been, and freed room is used again.
  std::string folder;

  // The most bytes that may be parked at a time; none: what the disk has.
  std::optional<Bytes> byte_cap = {};

  // Threads that read and write. Two keep a disk busy while one of them prepares its next block.
  int workers = 2;

  // The most bytes that may wait to be written when park() returns: memory that parking has not
  // freed yet. What is loaded while it still waits comes from memory, what is dropped is not
  // written at all. Zero: park() writes.
  Bytes in_flight = MiB(64);

  // The most bytes that prefetch() may hold in memory until they are loaded. One value is fetched
  // ahead however large it is. Nothing is fetched ahead that would pass the limit of a
  // MemoryBudget.
  Bytes read_ahead = MiB(64);

  // What is read and written at once; a multiple of 4 KiB. Each worker has a buffer of this size.
  Bytes block = MiB(1);
};

// A file on a disk, for tensors in host memory. Blocks go to the disk directly, past the system's
// page cache, where the file system can do that (ext4, xfs, btrfs, NFS); elsewhere the cache is
// used, and told to forget them. Each value's 64-bit checksum (XXH3) is taken on the way out and
// verified on the way back.
// The store belongs to the process that made it: in a process that is forked from it, parking,
// loading and flush() throw StoreError. Make a store in each process, after the fork.
// Throws UsageError for options out of range, StoreError if there can be no file in the folder.
std::shared_ptr<Store> disk_store(const DiskStoreOptions& options);

struct HostStoreOptions {
  // The most bytes that may wait to be copied when park() returns: device memory that parking has
  // not freed yet.
  Bytes in_flight = MiB(256);

  // The most bytes that prefetch() may hold in device memory until they are loaded. One value is
  // fetched ahead however large it is.
  Bytes read_ahead = MiB(256);
};

// Pinned host memory, for tensors on an accelerator; it comes from LibTorch's allocator for such
// memory, which keeps it for the next step. Copies run on streams of their own beside the
// computation, and nothing waits for them but what needs them: a loaded tensor may be used at once
// on the calling thread's current stream. Written for every accelerator that LibTorch has
// streams, events and pinned memory for; tested on a simulated one (tests/fake_device).
// Throws UsageError in a process without an accelerator.
std::shared_ptr<Store> host_store(const HostStoreOptions& options = {});

}  // namespace reprise
