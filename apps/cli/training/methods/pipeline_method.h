// `reprise train --pipeline` on the models of methods: steps through a pipeline.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "apps/cli/training/methods/method.h"
#include "apps/cli/training/pipelined/pipeline_choice.h"

namespace reprise::app {

// Seconds are those of all workers together. The task must live as long as the method, and no two of
// its parts share a parameter.
std::unique_ptr<TrainingMethod> make_pipeline_method(const PipelineChoice& choice, const Task& task,
                                                     c10::Device device);

}  // namespace reprise::app
