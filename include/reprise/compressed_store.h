// A store (reprise/store.h) that keeps tensors in the memory they are in, in fewer bytes.
//
//   auto store = reprise::compressed_store({.compression = reprise::Compression::kInt8});
//   reprise::Offload scope(store);          // what autograd saves takes about a quarter
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
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>
#include <reprise/store.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace reprise {

// From what changes nothing to what changes most.
enum class Compression : std::uint8_t { kExact, kBfloat16, kInt8, kInt4 };

// What a value became.
enum class CompressedForm : std::uint8_t { kAsItIs, kMask, kSparse, kBfloat16, kInt8, kInt4 };

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
struct CompressedAs {
  CompressedForm form = CompressedForm::kAsItIs;
  Bytes before;
  Bytes after;
  // Of a lossy form: the mean over elements of (largest - least of its block)^2 by the mean of
  // their squares, from up to 64 blocks; else 0. Stochastic rounding to 8 and 4 bits adds noise of
  // spread / (6 * 255^2) and spread / (6 * 15^2) of the value's squares.
  double spread = 0;
};

class CompressedStore final : public Store {
 public:
  // Throws UsageError for options out of range.
  explicit CompressedStore(const CompressedStoreOptions& options);

  // As park(), with a compression for this tensor: for what decides anew for each. Throws
  // UsageError if it changes more than the store's own, which exact() goes by. `became`, where it
  // is not null, is told what was made of it.
  std::unique_ptr<ParkedTensor> park_as(const at::Tensor& tensor, Compression compression,
                                        CompressedAs* became = nullptr);

  // Whether the store's compression is kExact.
  bool exact() const override;
  // The CPU's tensors only.
  bool takes(c10::Device device) const override;
  std::string name() const override;

  // What the values that are parked now take; statistics().parked is what they took before.
  Bytes compressed() const { return Bytes(compressed_); }
  CompressedTotals totals(CompressedForm form) const;

  // The number of the next stream. A training that is resumed with the number that it had goes on
  // with the random numbers that it would have had.
  std::uint64_t next_stream() const { return next_stream_; }
  void set_next_stream(std::uint64_t stream) { next_stream_ = stream; }

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override;

 private:
  class Parked;
  std::unique_ptr<ParkedTensor> park_flat_as(const at::Tensor& flat, Compression compression,
                                             CompressedAs* became);

  struct Counts {
    std::atomic<std::int64_t> count = 0, before = 0, after = 0;
  };

  const CompressedStoreOptions options_;
  std::atomic<std::uint64_t> next_stream_ = 0;
  std::atomic<std::int64_t> compressed_ = 0;
  std::array<Counts, 6> totals_;
};

// A CompressedStore, in the form that the other stores are made in.
std::shared_ptr<CompressedStore> compressed_store(const CompressedStoreOptions& options = {});

}  // namespace reprise
