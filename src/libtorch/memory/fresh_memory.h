// Which memory of the CPU was allocated since a certain moment: tells what a function has made
// itself from what was there before it.
//
// While a period is open on a thread, the counting allocator notes the addresses that it hands out
// on that thread. An address that was handed out since the period began holds memory that is
// younger than it; one that the allocator owns and that no thread was given since is older. Periods
// nest.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise::libtorch {

enum class Age {
  kFresh,    // allocated since
  kOlder,    // there before
  kUnknown,  // not the counting allocator's memory, or of any thread but the period's
};

class FreshMemory {
 public:
  // A period of the calling thread, from now on. Must be destroyed there, in reverse order.
  FreshMemory();
  ~FreshMemory();
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;

  // Takes older memory for fresh in the open periods: nobody else wants what is in it.
  static void adopt(c10::StorageImpl& storage);

  // What tells the age of memory while the period is open, from any thread.
  class Mark {
   public:
    Mark() = default;
    // Without memory (no element, or none on this device) there is nothing to be older: fresh.
    Age age_of(c10::StorageImpl& storage) const;

   private:
    friend class FreshMemory;
    const void* log_ = nullptr;
    std::uint64_t start_ = 0;
    // Allocations on other threads so far.
    std::int64_t elsewhere_ = 0;
  };
  const Mark& mark() const { return mark_; }

 private:
  Mark mark_;
};

// For the counting allocator: `data` was handed out on this thread.
void note_allocation(const void* data);

}  // namespace reprise::libtorch
