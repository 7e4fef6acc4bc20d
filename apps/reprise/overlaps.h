// Whether a run would write over what it reads, or write two things to one place.
#pragma once

#include "apps/reprise/options.h"

namespace reprise::app {

// Throws UsageError, naming both options, if the metrics or the checkpoint (or what is written
// beside them while they are replaced) are a file of --data or one another. Links are followed.
// Nothing is opened or made.
void refuse_overlaps(const TrainOptions& options);

}  // namespace reprise::app
