// Memory that a thread freed last serves its next allocations of that size. Not for direct use.
#pragma once

namespace reprise::detail {

// While one lives, all threads do that, as in a step of a budget. Thread-safe.
class FreedBlocksUse {
 public:
  FreedBlocksUse();
  ~FreedBlocksUse();
  FreedBlocksUse(const FreedBlocksUse&) = delete;
  FreedBlocksUse& operator=(const FreedBlocksUse&) = delete;
};

}  // namespace reprise::detail
