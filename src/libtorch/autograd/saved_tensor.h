// Tensors saved through autograd, and the version check that hooks would otherwise lose.
//
// SavedTensor saves a tensor as an operator's backward would: hooks in force are applied to it, so
// an enclosing region or offload scope manages it, and without hooks the original variable comes
// back. SavedVersion is what hooks of our own remember of a tensor: autograd checks versions only
// for tensors saved without hooks, so ours check them, with autograd's own text.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "libtorch/base/versions.h"

namespace reprise::libtorch {

using torch::autograd::SavedVariableHooks;

// `tensor` without its autograd history, on the same memory and version counter; itself if it has
// none. Hooks must keep this one: keeping an output with its history is a reference cycle.
at::Tensor without_history(const at::Tensor& tensor);
// The same, but always a tensor of its own. Tensor::tensor_data(), without its detours.
at::Tensor alias_without_history(const at::Tensor& tensor);
// The same on a version counter of its own, for memory that is handed to somebody else.
at::Tensor alias_with_own_counter(const at::Tensor& tensor);

// Whether `tensor` is a leaf that requires grad, or a view of one: what stays in memory for the
// optimizer anyway.
bool is_parameter(const at::Tensor& tensor);

// Whether the two count the changes of one thing.
bool same_counter(const c10::VariableVersion& a, const c10::VariableVersion& b);

// A weak reference to an autograd node, for error texts.
class WeakNode {
 public:
  WeakNode() = default;
  explicit WeakNode(const at::Tensor& tensor);
  // "output 0 of Mul" ("of MulBackward0" up to LibTorch 2.12), or empty for a leaf or a node that
  // is gone.
  std::string describe() const;

 private:
  WeakNodePointer node_ = weak_pointer(NodePointer());
  std::uint32_t output_ = 0;
};

// The number of in-place changes so far. Throws for inference tensors, as saving one does.
inline std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

class SavedVersion {
 public:
  SavedVersion() = default;
  explicit SavedVersion(const at::Tensor& tensor) : version_(version_of(tensor)) {}
  // Throws autograd's error about an in-place modification if `tensor`, which shares the version
  // counter of the tensor given to the constructor, has been changed since.
  void check(const at::Tensor& tensor, const WeakNode& node = {}) const {
    check(tensor, tensor.unsafeGetTensorImpl()->version_counter(), node);
  }
  bool is_current(const at::Tensor& tensor) const { return version_of(tensor) == version_; }
  // The same as check(), for a tensor that has another counter than the one that was saved.
  void check(const at::Tensor& tensor, const c10::VariableVersion& counter,
             const WeakNode& node) const;

 private:
  std::uint32_t version_ = 0;
};

class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const at::Tensor& tensor);

  // Throws autograd's error if the tensor was changed in place since, unless a hook keeps it.
  at::Tensor unpack() const;
  // The same, with the tensor's present contents.
  at::Tensor unpack_changed() const;
  bool is_kept_by_hook() const { return saved_.has_hooks(); }
  // How many in-place changes the tensor has seen since it was saved; nullopt where a hook keeps
  // it.
  std::optional<std::int64_t> changes() const;
  // For a tensor that a hook keeps: how often the original was changed in place since, and whether
  // what the hook gave back is the original's memory, so that the change is in it.
  std::int64_t changes_behind_hook() const;
  bool is_original(const at::Tensor& tensor) const;
  // Keeps the tensor's present contents without history from now on: for a tensor that was changed
  // in place by what it was saved for, and whose new history would refer back to this object.
  void adopt_changes();

 private:
  torch::autograd::SavedVariable saved_;
  at::Tensor adopted_;
  // Of the tensor that was saved; no counter after adopt_changes().
  c10::VariableVersion counter_;
  std::uint32_t version_ = 0;
  // Only where a hook keeps the tensor.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
};

}  // namespace reprise::libtorch
