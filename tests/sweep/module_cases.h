// The modules of torch::nn with inputs, for the sweep over them.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/region/testing.h"

namespace reprise::testing {

struct MadeModule {
  std::shared_ptr<torch::nn::Module> module;
  Tensors inputs;
  std::function<Tensors(const Tensors&)> forward;
};

struct ModuleCase {
  std::string name;
  // For a batch of `n`. Draws weights and inputs from the default generator.
  std::function<MadeModule(std::int64_t n)> make;
};

inline Tensors flat(const at::Tensor& result) { return {result}; }
inline Tensors flat(const torch::nn::ASMoutput& result) {
  return {result.output, at::scalar_tensor(result.loss)};
}
template <class... Parts>
Tensors flat(const std::tuple<Parts...>& results) {
  Tensors all;
  std::apply(
      [&](const auto&... part) {
        const auto add = [&](const Tensors& more) {
          all.insert(all.end(), more.begin(), more.end());
        };
        (add(flat(part)), ...);
      },
      results);
  return all;
}

// A module that is given its inputs one by one.
template <class Module>
MadeModule given(Module module, Tensors inputs) {
  const auto forward = [module](const Tensors& x) mutable -> Tensors {
    if constexpr (requires { module->forward(x[0]); }) {
      if (x.size() == 1) return flat(module->forward(x[0]));
    }
    if constexpr (requires { module->forward(x[0], x[1]); }) {
      if (x.size() == 2) return flat(module->forward(x[0], x[1]));
    }
    if constexpr (requires { module->forward(x[0], x[1], x[2]); }) {
      if (x.size() == 3) return flat(module->forward(x[0], x[1], x[2]));
    }
    if constexpr (requires { module->forward(x[0], x[1], x[2], x[3]); }) {
      if (x.size() == 4) return flat(module->forward(x[0], x[1], x[2], x[3]));
    }
    throw std::logic_error("a module of the table takes another number of inputs");
  };
  return {module.ptr(), std::move(inputs), forward};
}

std::vector<ModuleCase> layer_modules();
std::vector<ModuleCase> sequence_and_loss_modules();

}  // namespace reprise::testing
