#include "libtorch/memory/freed_blocks.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "core/recycling_allocator.h"
#include "reprise/detail/freed_blocks.h"

namespace reprise::libtorch {
namespace {

struct Block {
  void* data;
  std::size_t usable;
};

// Trivially destructible, so that tensors which outlive the thread's other variables may still be
// freed; Closer empties it. The oldest block is the first.
struct Blocks {
  std::array<Block, FreedBlocks::kMost> list;
  std::size_t count;
  std::size_t bytes;
  bool closed;
  bool watched;

  void* remove(std::size_t at) {
    void* const data = list[at].data;
    bytes -= list[at].usable;
    std::copy(list.begin() + at + 1, list.begin() + count, list.begin() + at);
    --count;
    return data;
  }
};
constinit thread_local Blocks blocks{};
constinit std::atomic<int> uses{0};

struct Closer {
  ~Closer() {
    FreedBlocks::free_all();
    blocks.closed = true;
  }
};

// glibc's posix_memalign() hands out up to 47 more bytes than it was asked for: it rounds up by 15,
// and leaves a rest of 32 in the block.
constexpr std::size_t kSlack = 48;

}  // namespace

bool FreedBlocks::is_wanted() noexcept { return uses.load(std::memory_order_relaxed) != 0; }

void* FreedBlocks::take(std::size_t bytes) noexcept {
  for (std::size_t at = blocks.count; at-- > 0;) {
    const std::size_t usable = blocks.list[at].usable;
    if (bytes <= usable && usable < bytes + kSlack) return blocks.remove(at);
  }
  return nullptr;
}

void FreedBlocks::give(void* data, std::size_t usable) noexcept {
  if (!REPRISE_RECYCLES || usable < kSmallest || usable > kMostBytes || blocks.closed) {
    return c10::free_cpu(data);
  }
  if (!blocks.watched) {
    blocks.watched = true;
    static thread_local Closer closer;
  }
  while (blocks.count == kMost || blocks.bytes + usable > kMostBytes) {
    c10::free_cpu(blocks.remove(0));
  }
  blocks.list[blocks.count++] = {data, usable};
  blocks.bytes += usable;
}

bool FreedBlocks::free_all() noexcept {
  if (blocks.count == 0) return false;
  while (blocks.count != 0) c10::free_cpu(blocks.remove(blocks.count - 1));
  return true;
}

std::size_t FreedBlocks::bytes() noexcept { return blocks.bytes; }

}  // namespace reprise::libtorch

namespace reprise::detail {

FreedBlocksUse::FreedBlocksUse() { ++libtorch::uses; }
FreedBlocksUse::~FreedBlocksUse() {
  if (--libtorch::uses == 0) libtorch::FreedBlocks::free_all();
}

}  // namespace reprise::detail
