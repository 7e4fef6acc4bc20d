// Lets the Python peer read reprise's byte counts: a PeakScope behind C functions that ctypes can
// call. Loading it loads the library, which puts the counting allocator in place, so that both
// languages' bytes come from the same meter. LibTorch is the one that Python has loaded already.
#include <reprise/memory.h>

#include <cstdint>
#include <memory>

namespace {
std::unique_ptr<reprise::PeakScope> scope;
}

extern "C" void reprise_bench_start() { scope = std::make_unique<reprise::PeakScope>(); }

extern "C" std::int64_t reprise_bench_peak_above_start() {
  const std::int64_t bytes = scope->peak_above_start().count;
  scope.reset();
  return bytes;
}
