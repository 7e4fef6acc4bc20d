#include "libtorch/memory/large_memory.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cstdint>

#include "libtorch/base/thread_state.h"

namespace reprise::libtorch {

#if defined(__linux__) && defined(MADV_HUGEPAGE)

namespace {

// Smaller memory mostly lies in what malloc keeps, whose pages are there already.
constexpr std::size_t kLarge = std::size_t{4} << 20U;

bool is_in_region() {
  const ThreadState* state = current_state();
  return state != nullptr && (state->checkpointing || state->recomputing);
}

}  // namespace

void advise_large_pages(void* data, std::size_t bytes) {
  if (bytes < kLarge || !is_in_region()) return;
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  // Outward to whole pages, so that neighbouring blocks stay one mapping of the system.
  const std::size_t before = reinterpret_cast<std::uintptr_t>(data) % page;
  madvise(static_cast<std::byte*>(data) - before, bytes + before, MADV_HUGEPAGE);
}

#else

void advise_large_pages(void*, std::size_t) {}

#endif

}  // namespace reprise::libtorch
