// A function with the modules that it runs, as a layer of a model.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <utility>

#include "models/strategy.h"

namespace reprise::app {

struct ModelLayerImpl : torch::nn::Module {
  ModelLayerImpl(const std::string& name, models::Layer layer)
      : Module(name), run(std::move(layer)) {}
  at::Tensor forward(const at::Tensor& x) { return run(x); }
  models::Layer run;
};
TORCH_MODULE(ModelLayer);

}  // namespace reprise::app
