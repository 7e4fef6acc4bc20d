// Names in force: one string in the thread's state.

#include <reprise/error.h>
#include <reprise/selective.h>
#include <torch/nn/module.h>

#include "libtorch/base/thread_state.h"

namespace reprise {

struct NamedScope::Impl {
  libtorch::ThreadStateScope in_force;
};

NamedScope::NamedScope(std::string_view name) {
  if (name.empty()) throw UsageError("named(): the name is empty; give a text such as 'attention'");
  auto state = libtorch::copy_of_current_state();
  auto path = std::make_shared<std::string>();
  if (state->path != nullptr) *path = *state->path + ".";
  *path += name;
  state->path = std::move(path);
  impl_.reset(new Impl{libtorch::ThreadStateScope(std::move(state))});
}

NamedScope::~NamedScope() = default;

std::string current_path() {
  const auto* state = libtorch::current_state();
  return state != nullptr && state->path != nullptr ? *state->path : std::string();
}

std::string module_path(const torch::nn::Module& root, const torch::nn::Module& module) {
  if (&root == &module) return {};
  for (const auto& item : root.named_modules(std::string(), /*include_self=*/false)) {
    if (item.value().get() == &module) return item.key();
  }
  throw UsageError("module_path(): the module of type " + module.name() +
                   " is not among those of " + root.name() +
                   "; register it there, or give the module that holds it as root");
}

}  // namespace reprise
