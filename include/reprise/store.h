// Stores hold the value of a tensor while nobody needs it: in memory, on a disk, in a pinned host
// buffer. Park a tensor, release it, and load the same value later.
//
//   auto store = reprise::disk_store({.folder = "/scratch"});
//   std::unique_ptr<reprise::ParkedTensor> parked = store->park(tensor);
//   tensor.reset();                     // its memory is free as soon as it has been written
//   parked->prefetch();                 // a hint: fetch it in the background
//   at::Tensor again = parked->load();  // the same bits, sizes, strides, dtype and device
//
// The contract of every store (tests/store/contract_test.cpp checks it for all of them):
// - A loaded value has the bits, sizes, strides, dtype and device of the parked one, whatever view
//   that was. It has no history, and requires_grad is false. An inexact store (exact() is false)
//   may change floating-point values, and nothing else.
// - A parked tensor must not be changed in place: the store may read it later, or free its memory.
//   load() throws UsageError if it was, as far as LibTorch's version counter tells. Do not write to
//   a loaded tensor either: several calls may share it.
// - Destroying the ParkedTensor drops the value, at any time, also while it is being moved.
// - A value that could not be parked or loaded is a StoreError, with the place and the bytes.
//   Values move in the background, so a failed write shows at the tensor's load() or at a later
//   park() of the store, whichever comes first. An error is told once. The store works on, and a
//   failed load() may be tried again.
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

  // Returns the value, and waits for it. Every call after the first may have to fetch it again.
  virtual at::Tensor load() = 0;

  // A hint that load() follows soon: begins to fetch the value in the background, and never waits.
  // False if the store fetches nothing more now, because it holds as much ahead as it may or needs
  // no fetching. Then other values need not be asked for either.
  virtual bool prefetch() { return false; }

  // The size of the memory that holds the value's elements.
  virtual Bytes bytes() const = 0;
};

struct StoreStatistics {
  std::int64_t count = 0;  // values that are parked now
  Bytes parked;            // their bytes()
  Bytes waiting;           // the part of `parked` that has not left its original memory yet
  Bytes written;           // moved out of it since the store was made
  Bytes read;              // loaded since the store was made
};

// A store of your own derives from this class and implements park_flat(), exact(), takes() and
// name(); docs/extending.md shows one. Make it with std::make_shared.
class Store : public std::enable_shared_from_this<Store> {
 public:
  Store() = default;
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Parks the value of `tensor`; the store holds the tensor no longer than necessary. A store that
  // bounds the waiting bytes may wait until earlier values have moved. Throws UsageError for a
  // tensor that the store cannot take (sparse, nested, quantized, without memory, on another kind
  // of device). Throws StoreError if there is no room, or for an earlier failure.
  std::unique_ptr<ParkedTensor> park(const at::Tensor& tensor);

  // Whether every loaded value has the bits of the parked one.
  virtual bool exact() const = 0;
  // Whether tensors on `device` can be parked.
  virtual bool takes(c10::Device device) const = 0;
  // Names the store in texts: "disk store in /scratch".
  virtual std::string name() const = 0;
  // Waits until no value is moving. Throws StoreError for a value that could not be parked.
  virtual void flush() {}

  StoreStatistics statistics() const;

  // The reason why no store can park `tensor`; null if stores can.
  static const char* cannot_park(const at::Tensor& tensor);

 protected:
  // Parks `flat`: one-dimensional, contiguous, not empty, without history. park() has made it from
  // the tensor, and load() restores the original form of what the ParkedTensor made here returns.
  // The store may keep `flat` itself. Its bytes are in place until park_flat() returns, also inside
  // a MemoryBudget's step. A store that reads them by pointer later pins them (reprise::Pin).
  virtual std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) = 0;

  // park() with another function for park_flat(): for a store that parks in several ways.
  std::unique_ptr<ParkedTensor> park_by(
      const at::Tensor& tensor,
      const std::function<std::unique_ptr<ParkedTensor>(const at::Tensor& flat)>& park_flat);

  // Add to statistics().
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

// -- The stores of reprise

// Leaves the tensors where they are: for tests, and to switch a store off.
std::shared_ptr<Store> memory_store();

struct DiskStoreOptions {
  // -- Where, and how much

  // An existing folder on the disk to use. The store keeps one file there, without a name, so its
  // room is free again when the store is destroyed or the process ends in any way. Until then the
  // file does not shrink, and freed room is used again.
  std::string folder;
  // The most bytes that may be parked at a time; none: the room on the disk.
  std::optional<Bytes> byte_cap = {};

  // -- How much memory it uses

  // The most bytes that wait to be written when park() returns. Their memory is not free yet. A
  // value that still waits is loaded from memory, and one that is dropped is not written. Zero:
  // park() writes.
  Bytes in_flight = MiB(64);
  // The most bytes that prefetch() holds in memory until they are loaded. One value is fetched
  // ahead however large it is, but nothing that would pass the limit of a MemoryBudget.
  Bytes read_ahead = MiB(64);

  // -- Rarely needed

  // Threads that read and write. Two keep a disk busy while one of them prepares its next block.
  int workers = 2;
  // The unit of reading and writing, a multiple of 4 KiB. Each worker has a buffer of this size.
  Bytes block = MiB(1);
};

// Parks tensors of host memory in a file on a disk. Blocks bypass the system's page cache if the
// file system can do that (ext4, xfs, btrfs, NFS). On other file systems the cache is used, and
// told to forget them. Each value's 64-bit checksum (XXH3) is taken when it is written and verified
// when it is read.
//
// A store belongs to the process that made it. In a forked process parking, loading and flush()
// throw StoreError: make a store in each process, after the fork. Throws UsageError for options out
// of range, StoreError if there can be no file in the folder.
std::shared_ptr<Store> disk_store(const DiskStoreOptions& options);

struct HostStoreOptions {
  // The most bytes that wait to be copied when park() returns: device memory that is not free yet.
  Bytes in_flight = MiB(256);
  // The most bytes that prefetch() holds in device memory until they are loaded. One value is
  // fetched ahead however large it is.
  Bytes read_ahead = MiB(256);
};

// Parks tensors of an accelerator in pinned host memory. The memory comes from LibTorch's
// allocator, which keeps it for the next step. Copies run on streams of their own beside the
// computation, and only operators that need them wait. A loaded tensor may be used at once on the
// calling thread's current stream.
//
// It was written for every accelerator for which LibTorch has streams, events and pinned memory,
// and was tested on a simulated one (tests/fake_device). Throws UsageError in a process without an
// accelerator.
std::shared_ptr<Store> host_store(const HostStoreOptions& options = {});

// -- Compression
//
// compressed_store() keeps tensors in the memory they are in, in fewer bytes.
//
//   auto store = reprise::compressed_store({.compression = reprise::Compression::kInt8});
//   reprise::OffloadScope scope(store);     // what autograd saves takes about a quarter
//
// Exact forms change no bit. The store chooses them for each value by its contents, whatever the
// compression:
// - mask: one bit an element, if no 65,536 elements in a row have more than two bit patterns
//   (dropout masks, results of comparisons, constants);
// - sparse: one bit an element, and the elements that are not zero in their order, if many are zero
//   (a ReLU after dropout). Zero is the pattern without a bit; -0 is kept as an element.
//
// Lossy forms are for floating-point values, in a store that was made for them:
// - bf16, for single and double precision: rounded to the nearest, ties to even. The error of an
//   element x is at most |x| / 256 (2^-134 near zero).
// - 8 and 4 bits, for single, double and half precision and bfloat16. A block of elements shares a
//   minimum and a unit: the block's range divided by 255 or 15. An element becomes a number of
//   units above the minimum, rounded up or down at random by its distance (stochastic rounding).
//
// The error of an element in 8 or 4 bits is below one unit. Its mean is zero within a thousandth of
// a unit, its variance at most a quarter of the squared unit, apart from the rounding of the type's
// arithmetic. A block's smallest element is exact, so zeros are if nothing is below them, and
// constant blocks always are. An element that equals the smallest becomes it, be it +0 or -0.
//
// A form is taken if it saves at least a quarter of the bytes, a lossy one only if no exact form is
// as small. No lossy form is taken for a value with an element that is infinite, not a number, or
// large enough for sums to overflow (a quarter of the type's largest; in bf16 what rounds to
// infinity). Without a form the store holds the tensor itself, which saves nothing. This is so for
// small tensors, and for integers and complex numbers that are neither a mask nor sparse.
//
// Memory comes from LibTorch's CPU allocator, so live_bytes() (reprise/memory.h) counts it. Parking
// takes only the compressed bytes, and load() only the result; any store copies views with gaps. If
// memory is missing, the allocator's error passes through park() or load(), and nothing is left
// behind. Both finish their work before they return, on LibTorch's threads (at::parallel_for).
//
// The store has its own random numbers and leaves LibTorch's generators alone. Each parked value
// takes the next stream of the seed, and each block its part of the stream. So the same sequence of
// parks makes the same bits, whatever the number of threads. If several threads park at once, their
// order is the sequence. docs/compression.md has the layouts and measurements.

// From the one that changes nothing to the one that changes most.
enum class Compression : std::uint8_t { kExact, kBfloat16, kInt8, kInt4 };

// The form in which the store keeps a value.
enum class CompressedForm : std::uint8_t { kUncompressed, kMask, kSparse, kBfloat16, kInt8, kInt4 };

struct CompressedStoreOptions {
  // The form that may change most; lossy only if you ask for it.
  Compression compression = Compression::kExact;
  // Elements that share a minimum and a unit in 8 and 4 bits: from 32 to 65,536, a multiple of 32.
  // A block takes 8 bytes more (16 for double precision). Smaller blocks have smaller units.
  std::int64_t block = 256;
  std::uint64_t seed = 0;  // of stochastic rounding
};

// Counts of the values parked in one form since the store was made.
struct CompressedTotals {
  std::int64_t count = 0;
  Bytes before;
  Bytes after;
};

// How park_as() compressed one value.
struct CompressionResult {
  CompressedForm form = CompressedForm::kUncompressed;
  Bytes before;
  Bytes after;
  // Zero for an exact form. For a lossy one: the mean over elements of (largest - least of its
  // block)^2, divided by the mean of their squares, from up to 64 blocks. Stochastic rounding to 8
  // and 4 bits adds noise of spread / (6 * 255^2) and spread / (6 * 15^2) of the value's squares.
  double spread = 0;
};

// exact() says whether the store's compression is kExact; takes() is true for the CPU alone.
class CompressedStore : public Store {
 public:
  // park() with a compression chosen for this tensor. Throws UsageError if it changes more than the
  // store's own compression, on which exact() depends. `became` receives the result if it is not
  // null.
  virtual std::unique_ptr<ParkedTensor> park_as(const at::Tensor& tensor, Compression compression,
                                                CompressionResult* became = nullptr) = 0;

  // The compressed bytes of the values that are parked now; statistics().parked is what they took
  // before.
  virtual Bytes compressed() const = 0;
  virtual CompressedTotals totals(CompressedForm form) const = 0;

  // The number of the next stream. A resumed training that sets the number it had continues with
  // the random numbers that it would have had.
  virtual std::uint64_t next_stream() const = 0;
  virtual void set_next_stream(std::uint64_t stream) = 0;
};

// Throws UsageError for options out of range.
std::shared_ptr<CompressedStore> compressed_store(const CompressedStoreOptions& options = {});

}  // namespace reprise
