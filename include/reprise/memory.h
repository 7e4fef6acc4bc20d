// Measures how many bytes of tensors are live now, and how many were live at the peak: exactly, for
// each device.
//
// - On the CPU, reprise replaces LibTorch's allocator when the library is loaded. The new allocator
//   counts what malloc hands out (malloc_usable_size) and otherwise behaves as the stock one,
//   profiler events included. Tensors allocated before that moment never count.
// - On an accelerator, the figures are the caching allocator's own statistics: allocated bytes, not
//   reserved ones.
// - Memory from elsewhere is not seen: from_blob, mmap, scratch of BLAS and oneDNN, autograd's
//   nodes.
//
// Thread rules: any thread may call any function; the counts include all threads.
#pragma once

#include <c10/core/Device.h>
#include <reprise/bytes.h>

#include <cstdint>
#include <memory>

namespace reprise {

// Bytes that the device's allocator has handed out and not got back. Throws UsageError for a device
// that this build or machine does not have.
Bytes live_bytes(c10::Device device = c10::kCPU);

// The most bytes that were live at once since the process began to count.
Bytes peak_bytes(c10::Device device = c10::kCPU);

// The number of allocations that the device's allocator has served.
std::int64_t allocation_count(c10::Device device = c10::kCPU);

// Measures the peak between its construction and now, whichever thread allocates. Scopes may nest
// and overlap in any way, on one device or several, and do not disturb peak_bytes().
//
// On an accelerator, a scope resets the peak that LibTorch's own statistics show. Reading and
// resetting are two calls. Scopes that are already open can miss a peak of another thread between
// the two.
//
//   reprise::PeakScope scope;
//   model->forward(x).sum().backward();
//   std::cout << to_string(scope.peak_above_start());
class PeakScope {
 public:
  explicit PeakScope(c10::Device device = c10::kCPU);
  ~PeakScope();
  PeakScope(const PeakScope&) = delete;
  PeakScope& operator=(const PeakScope&) = delete;

  Bytes live_at_start() const;
  // The most bytes live at once since construction.
  Bytes peak() const;
  // The bytes that the measured work needed on top of those live before: peak() - live_at_start().
  Bytes peak_above_start() const { return peak() - live_at_start(); }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
