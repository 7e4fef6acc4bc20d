// All of reprise. Including only the headers that you use compiles faster.
#pragma once

#include <reprise/budget_observer.h>
#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/checkpoint.h>
#include <reprise/checkpoint_sequential.h>
#include <reprise/custom_function.h>
#include <reprise/error.h>
#include <reprise/estimate.h>
#include <reprise/learned_plan.h>
#include <reprise/memory.h>
#include <reprise/memory_budget.h>
#include <reprise/named.h>
#include <reprise/offload.h>
#include <reprise/plan.h>
#include <reprise/profile_chain.h>
#include <reprise/random_state.h>
#include <reprise/saved_tensor_hooks.h>
#include <reprise/schedule.h>
#include <reprise/selective.h>
#include <reprise/simulate.h>
#include <reprise/step_plan.h>
#include <reprise/store.h>
#include <reprise/trace_recorder.h>
#include <reprise/version.h>
#include <reprise/visit_tensors.h>
