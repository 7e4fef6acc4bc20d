// The blocks of tensors that a thread freed last, for its next allocations of their sizes.
//
// A tensor's result is written faster into memory that is in the cache still. malloc often hands
// out other memory: it puts small blocks, such as those of a boxed operator call, into the large
// ones that were freed just before. For Llama's step that cost more time than the recording of its
// 700 operators (scripts/bench python_no_pressure).
//
// Each thread has blocks of its own, few and small beside what a step takes, and no limit counts
// them, as no limit counts what malloc itself holds back. They are freed when the last use ends, by
// other threads at their next allocation, and when the thread ends.
#pragma once

#include <cstddef>

namespace reprise::libtorch {

class FreedBlocks {
 public:
  static constexpr std::size_t kMost = 8;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 24;
  static constexpr std::size_t kSmallest = std::size_t{1} << 16;

  // Whether there is a FreedBlocksUse.
  static bool is_wanted() noexcept;
  // A block of the calling thread's that malloc might have handed out for so many bytes. Null if
  // there is none.
  static void* take(std::size_t bytes) noexcept;
  // Keeps a block of so many usable bytes, which c10::free_cpu() would free, or frees it. The
  // oldest blocks go for it.
  static void give(void* data, std::size_t usable) noexcept;
  // Whether the calling thread had any.
  static bool free_all() noexcept;
  static std::size_t bytes() noexcept;
};

}  // namespace reprise::libtorch
