// Names for parts of a computation: what policies, logs and error texts can refer to.
//
//   auto y = reprise::named("attention", [&] { return attend(q, k, v); });
//   auto z = reprise::named("mlp", mlp_module, y);
//
// Names nest to a path, joined by dots: inside named("blocks.3", ...) the first call above has the
// path "blocks.3.attention", like the paths of modules (torch::nn::Module::named_modules). A path
// belongs to the calling thread, and goes along to autograd's threads for a backward that is called
// inside.
#pragma once

#include <reprise/detail/region_call.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace torch::nn {
class Module;
}

namespace reprise {

// The RAII form of named().
class NamedScope {
 public:
  // Throws UsageError if `name` is empty.
  explicit NamedScope(std::string_view name);
  ~NamedScope();
  NamedScope(const NamedScope&) = delete;
  NamedScope& operator=(const NamedScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs f(args...) under the name and returns its result. f: anything that checkpoint() takes.
template <class F, class... Args>
auto named(std::string_view name, F&& f, Args&&... args) {
  NamedScope scope(name);
  return detail::call_plain(f, args...);
}

// The path in force on this thread; empty outside of any name.
std::string current_path();

// The path of `module` within `root`, as named_modules() gives it: "blocks.3.attention"; empty for
// the root itself. Throws UsageError if it is not one of root's modules.
std::string module_path(const torch::nn::Module& root, const torch::nn::Module& module);

}  // namespace reprise
