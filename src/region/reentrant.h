// The reentrant kind of region: no graph in forward, a backward of its own inside backward.
#pragma once

#include <reprise/checkpoint.h>

#include <memory>

namespace reprise::region {

void run_reentrant(const CheckpointOptions& options,
                   const std::shared_ptr<detail::RegionCall>& call);

}  // namespace reprise::region
