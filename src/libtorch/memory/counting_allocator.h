// The CPU allocator that counts: LibTorch's own, plus counters.
//
// It allocates with the functions that the stock allocator uses, so that alignment and the fill
// flags stay as they are. Large memory that the function of a region asks for is advised to the
// system for large pages (large_memory.h). It reports to torch.profiler as the stock one does.
// Sizes are those that malloc really handed out (malloc_usable_size), read again on release: no
// table, no header, exact.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

#include "core/peak_tracker.h"

namespace reprise::libtorch {

// Replaces LibTorch's CPU allocator, unless that was done before or the program has brought an
// allocator of its own, which is then left in place. Called when the library is loaded. Not
// thread-safe with allocation, as c10::SetAllocator itself.
void install_counting_allocator();

// Whether allocations on the CPU are being counted.
bool counting_allocator_is_installed();
// Whether this memory was handed out by the counting allocator, or by LibTorch's own, which hands
// out nothing any more.
bool is_counted_memory(const c10::DataPtr& data);
bool is_uncounted_memory(const c10::DataPtr& data);
// What it counts for; 0 if it is not counted.
std::int64_t counted_bytes(const c10::DataPtr& data);

// Memory of the counting allocator for that many bytes, or none where it would pass a limit: no
// room is made for it. Nor is there any where the counting allocator is not installed.
c10::DataPtr allocate_if_it_fits(std::size_t bytes);

// The counters of the CPU; they live as long as the process.
LevelSource& cpu_levels();
// Allocations of at least one byte.
std::int64_t cpu_allocation_count();

// What threads that work for no limit (limited_work.h) were handed out while there was one, and
// have not given back.
PeakTracker& bytes_of_other_threads();
bool is_of_other_threads(const c10::DataPtr& data);

// The same of what threads that work for a limit allocated past operators (AccountedWork): kernels of
// compiled graphs, other libraries.
PeakTracker& bytes_past_operators();
bool is_past_operators(const c10::DataPtr& data);

}  // namespace reprise::libtorch
