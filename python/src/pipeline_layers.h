// Layers of a pipeline that are Python modules, and values between them: a tensor, or a tuple of such.
//
// The library refers to layers weakly, by a list that the Python object of the pipeline holds: whatever
// the layers refer to, Python's collector then sees all references. Who runs layers holds that object.
//
// The interpreter's lock (GIL): these functions are called with or without it, but for tensors_of()
// and value_of(), whose caller holds it.
#pragma once

#include <reprise/pipeline.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "checkpoint_call.h"

namespace reprise::python {

// One tensor, or several as a tuple. None stands for an undefined tensor.
Owned value_of(const std::vector<at::Tensor>& tensors);
// Throws UsageError for anything else, which `what` names: "layer 2 (Linear) returned".
std::vector<at::Tensor> tensors_of(const py::handle& value, const std::string& what);

// Stands in C++ for a BatchNorm module of Python, with its tensors and momentum.
struct NormStandIn {
  std::shared_ptr<torch::nn::BatchNorm1dImpl> norm =
      std::make_shared<torch::nn::BatchNorm1dImpl>(torch::nn::BatchNormOptions(1).affine(false));
};

// The attributes of one layer are read from an object of the class _Layer (reprise/pipeline.py).
// `holder` is a list of such.
std::vector<PipelineLayer> pipeline_layers(const py::list& holder);
// The list must live as long as they are measured. Each takes one tensor and returns one.
detail::Layers layers_to_measure(const py::list& holder);

// Calls a method that takes an event, of the object that `holder` refers to weakly; nothing where it is
// gone.
std::function<void(const PipelineEvent&)> observer_of(const py::object& holder);

// A loss of Python as a function of outputs and targets.
std::function<at::Tensor(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&)> loss_of(
    const py::object& loss);

}  // namespace reprise::python
