// Hooks on every tensor that autograd saves for backward, for C++ programs. LibTorch has none; the
// Python counterpart is torch.autograd.graph.saved_tensors_hooks.
//
// Autograd saves tensors while forward runs and reads them in backward. Inside a
// SavedTensorHooksScope it calls `pack` once when it saves a tensor and keeps what `pack` returns.
// It calls `unpack` each time backward needs the tensor.
//
//   {
//     reprise::SavedTensorHooksScope scope([](const at::Tensor& t) { return t.to(at::kBFloat16); },
//                                          [](const at::Tensor& t) { return t.to(at::kFloat); });
//     loss = model->forward(x);
//   }
//   loss.backward();     // unpacks; the scope may be closed by now
//
// Rules
// - Scopes nest, and only the innermost is called. A scope belongs to the thread that opened it and
//   to autograd's worker threads for a backward() called inside it. In a Python process PyTorch's
//   hooks and these form one stack, and the innermost of either kind wins.
// - `pack` gets the tensor without its history, so keeping it makes no reference cycle. It must not
//   change the tensor in place. Scalars that LibTorch wraps itself (the 2 in x * 2) are not shown.
// - `pack` and `unpack` run under no-grad. `unpack` must return a tensor of the same shape and
//   dtype, or backward throws UsageError. It may be called any number of times (retain_graph), and
//   from several threads at once.
// - In-place changes stay errors. If `unpack` returns the packed tensor's own memory and that was
//   changed in place since, backward throws autograd's error. A result with memory of its own is
//   accepted.
// - After an exception from `pack` or `unpack` the program is in the state in which autograd leaves
//   it after any failing operator.
// - Open and close these scopes and LibTorch's profiler properly nested: they share one stack.
// - In a Python process, `import torch` before the first C++ backward: LibTorch starts its pool of
//   autograd threads for the engine that is used first.
//
// Without an open scope a saved tensor costs nothing extra.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/detail/packed_tensor.h>

#include <memory>
#include <utility>

namespace reprise {

class SavedTensorHooksScope {
 public:
  // `pack` takes a const Tensor& and returns a P, for any movable type P. `unpack` takes a const P&
  // and returns a Tensor.
  template <class Pack, class Unpack>
  SavedTensorHooksScope(Pack pack, Unpack unpack)
      : SavedTensorHooksScope(detail::make_packer(std::move(pack), std::move(unpack))) {}
  ~SavedTensorHooksScope();
  SavedTensorHooksScope(const SavedTensorHooksScope&) = delete;
  SavedTensorHooksScope& operator=(const SavedTensorHooksScope&) = delete;

 private:
  explicit SavedTensorHooksScope(detail::Packer packer);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Inside this scope no C++ saved-tensor hook of an outer scope, and no outer region, is applied.
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

// Keeps every saved tensor in host memory until backward reads it, as Python's
// torch.autograd.graph.save_on_cpu does. Tensors that are in host memory already stay as they are.
//
// With `pin_memory` every tensor is copied, the host copy is pinned and the copies are
// asynchronous. Throws UsageError if there is no accelerator to pin memory for. Nobody has run this
// on an accelerator.
class SaveOnCpuScope {
 public:
  explicit SaveOnCpuScope(bool pin_memory = false);

 private:
  SavedTensorHooksScope hooks_;
};

}  // namespace reprise
