// All of reprise except experimental/. A program that includes only the headers it uses compiles
// faster.
#pragma once

#include <reprise/budget.h>
#include <reprise/budget_extensions.h>
#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>
#include <reprise/estimate.h>
#include <reprise/memory.h>
#include <reprise/offload.h>
#include <reprise/pipeline.h>
#include <reprise/pipeline_residency.h>
#include <reprise/pipeline_schedule.h>
#include <reprise/planners.h>
#include <reprise/random_state.h>
#include <reprise/saved_tensor_hooks.h>
#include <reprise/selective.h>
#include <reprise/sequential.h>
#include <reprise/skip.h>
#include <reprise/step_trace.h>
#include <reprise/store.h>

// The version of these headers.
#define REPRISE_VERSION_MAJOR 0
#define REPRISE_VERSION_MINOR 2
#define REPRISE_VERSION_PATCH 0
#define REPRISE_VERSION "0.2.0"

namespace reprise {

// The version of the library that was linked.
const char* version();
// The LibTorch that the library was built against, such as "2.13.0".
const char* libtorch_version();

}  // namespace reprise
