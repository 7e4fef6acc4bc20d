// Large pages for large memory that the function of a region asks for.
//
// malloc maps large blocks anew each time, and the system then clears them page by page as they are
// written: for a pass over memory that takes several times as long as its arithmetic. A region
// allocates such blocks twice, in forward and again to recompute, where the plain step does once.
// Pages of 2 MB are cleared much faster. Only advice: a system whose setting is "never", or that
// has no large pages, ignores it, and where the setting is "always" it changes nothing.
#pragma once

#include <cstddef>

namespace reprise::libtorch {

// Before anything is written to memory that the calling thread was given.
void advise_large_pages(void* data, std::size_t bytes);

}  // namespace reprise::libtorch
