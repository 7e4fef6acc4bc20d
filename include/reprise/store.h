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
  // The most bytes that may wait to be written when park() returns: memory that parking has not
  // freed yet. What is loaded while it still waits comes from memory, what is dropped is not
  // written at all. Zero: park() writes.
  Bytes in_flight = MiB(64);
  // The most bytes that prefetch() may hold in memory until they are loaded. One value is fetched
  // ahead however large it is. Nothing is fetched ahead that would pass the limit of a
  // MemoryBudget.
  Bytes read_ahead = MiB(64);
  // Threads that read and write. Two keep a disk busy while one of them prepares its next block.
  int workers = 2;
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

// A store (reprise/store.h) that keeps tensors in the memory they are in, in fewer bytes.
//
//   auto store = reprise::compressed_store({.compression = reprise::Compression::kInt8});
//   reprise::OffloadScope scope(store);          // what autograd saves takes about a quarter
//
// Exact forms, which never change a bit, are chosen for each value by what it holds, whatever
// the compression:
// - mask: a bit for each element, where no 65,536 elements in a row are of more than two bit
//   patterns (dropout masks, results of comparisons, constants);
// - sparse: a bit for each element and those that are not zero, in their order, where many are (the
//   result of a ReLU after dropout). Zero is the pattern without a bit; -0 is kept as an element.
// Lossy forms are taken for values of floating point only, and only if the store was made for them:
// - bf16, of single and double precision: rounded to the nearest, ties to even. The error of an
//   element x is at most |x| / 256 (2^-134 near zero).
// - 8 and 4 bits, of single, double and half precision and bfloat16: blocks of elements share a
//   minimum and a step, a 255th or a 15th of the block's range, and an element is the number of
//   steps above the minimum, rounded up or down at random in proportion to how near either is
//   (stochastic rounding). So the error of an element is below one step, its mean is zero and its
//   variance at most a quarter of the squared step; all but for the rounding of arithmetic in the
//   element's type, and the mean but for a thousandth of a step. A block's smallest element comes
//   back as it was: zeros do where nothing is below them, constant blocks always. (An element that
//   equals the smallest comes back as it, be it +0 or -0.)
// A form is taken if it saves at least a quarter of the bytes, a lossy one only if no exact one is
// as small. Otherwise, and for a lossy form if an element is infinite or not a number, or so
// large (a quarter of the type's largest; what bf16 rounds to infinity) that sums could overflow,
// the value is kept as it is: exactly, and nothing is saved, for the store holds the tensor itself
// until the value is dropped. So it goes with small tensors, and with integers and complex numbers
// that are neither a mask nor sparse.
//
// Memory comes from LibTorch's CPU allocator, so that live_bytes() (reprise/memory.h) counts it.
// Parking takes no memory besides the compressed bytes, and load() none besides the result, but
// for views with gaps, of which any store makes a copy. Where that memory cannot be had, the
// allocator's error passes through park() or load() and nothing is left behind. Both do their work
// before they return, on LibTorch's threads (at::parallel_for); there is nothing to prefetch.
//
// Random numbers are the store's own: LibTorch's generators are neither read nor moved. Each value
// parked takes the next stream of the seed, and each of its blocks a part of it, so that the same
// sequence of parks makes the same bits, whatever the number of threads; if several threads park at
// once, their order is the sequence. docs/compression.md has the layouts, and what they take.

// From what changes nothing to what changes most.
enum class Compression : std::uint8_t { kExact, kBfloat16, kInt8, kInt4 };

// What a value became.
enum class CompressedForm : std::uint8_t { kUncompressed, kMask, kSparse, kBfloat16, kInt8, kInt4 };

struct CompressedStoreOptions {
  // Lossy only if asked for.
  Compression compression = Compression::kExact;
  // Elements that share a minimum and a step at 8 and 4 bits: from 32 to 65,536, a multiple of 32.
  // They take 8 bytes a block (16 for double precision). Smaller blocks have smaller steps.
  std::int64_t block = 256;
  // Of stochastic rounding.
  std::uint64_t seed = 0;
};

// Values parked in one form since the store was made.
struct CompressedTotals {
  std::int64_t count = 0;
  Bytes before;
  Bytes after;
};

// What park_as() made of one value.
struct CompressionResult {
  CompressedForm form = CompressedForm::kUncompressed;
  Bytes before;
  Bytes after;
  // Of a lossy form: the mean over elements of (largest - least of its block)^2 by the mean of
  // their squares, from up to 64 blocks; else 0. Stochastic rounding to 8 and 4 bits adds noise of
  // spread / (6 * 255^2) and spread / (6 * 15^2) of the value's squares.
  double spread = 0;
};

class CompressedStore : public Store {
 public:
  // As park(), with a compression for this tensor: for what decides anew for each. Throws
  // UsageError if it changes more than the store's own, which exact() goes by. `became`, where it
  // is not null, is told what was made of it.
  virtual std::unique_ptr<ParkedTensor> park_as(const at::Tensor& tensor, Compression compression,
                                                CompressionResult* became = nullptr) = 0;

  // What the values that are parked now take; statistics().parked is what they took before.
  virtual Bytes compressed() const = 0;
  virtual CompressedTotals totals(CompressedForm form) const = 0;

  // The number of the next stream. A training that is resumed with the number that it had goes on
  // with the random numbers that it would have had.
  virtual std::uint64_t next_stream() const = 0;
  virtual void set_next_stream(std::uint64_t stream) = 0;
};

// A CompressedStore, in the form that the other stores are made in.
std::shared_ptr<CompressedStore> compressed_store(const CompressedStoreOptions& options = {});

}  // namespace reprise
