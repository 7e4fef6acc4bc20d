// How many bytes of tensors are alive, and how many were at the worst moment: exact, per device.
//
// On the CPU reprise replaces LibTorch's allocator, when the library is loaded, by one that counts
// what malloc hands out (malloc_usable_size) and otherwise behaves as the stock one, profiler
// events included. Tensors that were allocated before that moment are not counted, neither when
// they live nor when they die. Not seen: memory that does not come from LibTorch's allocator
// (from_blob, mmap, BLAS and oneDNN scratch, autograd's nodes).
//
// On an accelerator the figures are the caching allocator's own statistics (allocated, not
// reserved).
//
// All functions may be called from any thread; counts include every thread.
#pragma once

#include <c10/core/Device.h>
#include <reprise/bytes.h>

#include <cstdint>
#include <memory>

namespace reprise {

// Bytes handed out by the device's allocator and not yet returned.
// Throws UsageError for a device that this build or machine does not have.
Bytes live_bytes(c10::Device device = c10::kCPU);

// The most bytes that were ever alive at once since the process began to count.
Bytes peak_bytes(c10::Device device = c10::kCPU);

// How many allocations the CPU allocator has served; other devices: allocations of the caching
// allocator.
std::int64_t allocation_count(c10::Device device = c10::kCPU);

// Measures the peak between its construction and now, whichever thread allocates. Scopes may nest
// and overlap in any way, on one device or several; peak_bytes() is not disturbed. On an
// accelerator a scope resets the peak that LibTorch's own statistics show, and two calls are needed
// to read and reset it: a peak of another thread between them can be missed by scopes that were
// open before.
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
  // The most bytes alive at once since construction.
  Bytes peak() const;
  // peak() - live_at_start(): what the measured work needed on top of what was there.
  Bytes peak_above_start() const { return peak() - live_at_start(); }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
