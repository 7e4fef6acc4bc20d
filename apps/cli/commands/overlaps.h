// Whether a run would write over what it reads, or write two things to one place.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/commands/options.h"

namespace reprise::app {

// Throws UsageError, naming both options, if the metrics, the trace or the checkpoint (or what is
// written beside them while they are replaced) are a file of --data or one another. Links are
// followed. Nothing is opened or made.
void refuse_overlaps(const TrainOptions& options);

// The same for one file that is written beside --data.
void refuse_overlap(const char* option, const std::string& path,
                    const std::vector<std::string>& data);

}  // namespace reprise::app
