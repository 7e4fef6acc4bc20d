// Hooks on every tensor that autograd saves for backward, for C++ programs.
//
// Autograd saves tensors while forward runs and reads them in backward. A SavedTensorHooksScope scope
// stands between the two: `pack` is called once when a tensor is saved and returns whatever should
// be kept in its place; `unpack` is called each time backward needs the tensor.
// (torch.autograd.graph .saved_tensors_hooks is the Python counterpart; LibTorch itself has none
// for C++.)
//
//   {
//     reprise::SavedTensorHooksScope scope([](const at::Tensor& t) { return t.to(at::kBFloat16); },
//                                     [](const at::Tensor& t) { return t.to(at::kFloat); });
//     loss = model->forward(x);
//   }
//   loss.backward();     // unpacks; the scope need not be open any more
//
// Rules
// - Scopes nest; the innermost alone is called. A scope belongs to the thread that opened it, and
//   goes along to autograd's worker threads for a backward() that is called inside it. In a Python
//   process PyTorch's own hooks and these form one stack: the innermost wins, whichever kind it is.
// - `pack` sees the tensor without its history: it may be kept as it is without a reference cycle.
//   It must not change it in place. Scalars that LibTorch wraps itself (the 2 in x * 2) are not
//   shown.
// - `pack` and `unpack` run under no-grad. `unpack` must return a tensor of the same shape and
//   dtype; it may be called from several threads at once, and any number of times (retain_graph).
// - In-place changes stay errors: where unpack's result shares the memory of the tensor that was
//   packed, and that was changed in place since, backward throws autograd's own error. (A result
//   with memory of its own is not affected by such a change, and is accepted.)
// - Exceptions from either function leave the program as autograd leaves it after any failing
//   operator.
//
// - LibTorch's profiler and these scopes keep their state in one stack: open and close them
//   properly nested.
// - In a Python process, `import torch` before the first C++ backward: LibTorch starts its pool of
//   autograd threads for the engine that is used first.
//
// Without an open scope a saved tensor costs nothing extra.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace reprise {

namespace detail {

// What `pack` returned, with the way back.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  virtual at::Tensor unpack() = 0;
};
using Packer = std::function<std::unique_ptr<PackedTensor>(const at::Tensor&)>;

}  // namespace detail

class SavedTensorHooksScope {
 public:
  // `pack`: const Tensor& -> P, for any movable P. `unpack`: const P& -> Tensor.
  template <class Pack, class Unpack>
  SavedTensorHooksScope(Pack pack, Unpack unpack);
  ~SavedTensorHooksScope();
  SavedTensorHooksScope(const SavedTensorHooksScope&) = delete;
  SavedTensorHooksScope& operator=(const SavedTensorHooksScope&) = delete;

 private:
  explicit SavedTensorHooksScope(detail::Packer packer);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Inside this scope no C++ saved-tensor hook of an outer scope (and no outer region) is applied.
class NoSavedTensorHooksScope {
 public:
  NoSavedTensorHooksScope();
  ~NoSavedTensorHooksScope();
  NoSavedTensorHooksScope(const NoSavedTensorHooksScope&) = delete;
  NoSavedTensorHooksScope& operator=(const NoSavedTensorHooksScope&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Keeps every saved tensor in host memory until backward asks for it: moved to the CPU when packed
// and back to its device when unpacked. Tensors that are there already stay as they are. With
// `pin_memory` every tensor is copied, the host copy is pinned and the copies are asynchronous;
// UsageError is thrown where there is no accelerator to pin memory for; that never ran on one.
// (Python: torch.autograd.graph.save_on_cpu.)
class SaveOnCpuScope {
 public:
  explicit SaveOnCpuScope(bool pin_memory = false);

 private:
  SavedTensorHooksScope hooks_;
};

template <class Pack, class Unpack>
SavedTensorHooksScope::SavedTensorHooksScope(Pack pack, Unpack unpack)
    : SavedTensorHooksScope(detail::Packer(
          [pack = std::move(pack), unpack = std::make_shared<Unpack>(std::move(unpack))](
              const at::Tensor& tensor) -> std::unique_ptr<detail::PackedTensor> {
            using Kept = std::decay_t<std::invoke_result_t<const Pack&, const at::Tensor&>>;
            struct Packed final : detail::PackedTensor {
              Packed(Kept value, std::shared_ptr<Unpack> back)
                  : kept(std::move(value)), unpack_(std::move(back)) {}
              at::Tensor unpack() override { return (*unpack_)(std::as_const(kept)); }
              Kept kept;
              std::shared_ptr<Unpack> unpack_;
            };
            return std::make_unique<Packed>(pack(tensor), unpack);
          })) {}

}  // namespace reprise
