// How tensors lie on their memory, and which of them are nothing but that; and the tensors among a
// call's arguments. Reading any of this touches no data.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>

namespace reprise::libtorch {

// How a tensor lies on its storage, with all that a kernel sees of it.
struct TensorForm {
  c10::SmallVector<std::int64_t, 4> sizes;
  c10::SmallVector<std::int64_t, 4> strides;
  std::int64_t offset = 0;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet keys;
  bool wrapped_number = false;

  static TensorForm of(const at::Tensor& tensor);
  void take(const at::Tensor& tensor);
  bool is_of(const at::Tensor& tensor) const;
  at::Tensor on(c10::Storage storage) const;
};

// A tensor that is nothing but strided elements on a storage of this kind of device: neither
// sparse, nested, quantized nor a wrapper, with memory that is not copied on write, and on no other
// device.
bool is_plain(const at::Tensor& tensor, c10::DeviceType device);
// The storages that a tensor has its data on, or in the tensors that it is made of: of one that is
// sparse the indices and values, of one that is nested the buffer and the sizes.
void visit_storages(const at::Tensor& tensor,
                    const std::function<void(const c10::Storage&)>& visit);
// Whether writing all of the tensor's elements writes every byte of its storage.
bool covers_storage(const at::Tensor& tensor);
// How many of the storage's first bytes the tensor's elements fill without a gap; 0 if they do not
// begin with the storage.
std::int64_t leading_bytes(const at::Tensor& tensor);

// The storages in an argument that visit_arguments() passes over: of tensors in lists of lists and
// dictionaries, and those that stand for themselves.
void visit_deeper(const c10::IValue& argument,
                  const std::function<void(const c10::Storage&)>& visit);
// Whether there may be any.
inline bool may_go_deeper(const c10::IValue& argument) {
  if (argument.isGenericDict() || argument.isTuple() || argument.isStorage()) return true;
  if (!argument.isList()) return false;
  const auto list = argument.toListRef();
  return !list.empty() && (list[0].isList() || list[0].isGenericDict() || list[0].isTuple());
}

// TorchScript gives a list of optional tensors a type that equals LibTorch's and is another object,
// so that isOptionalTensorList() is false. Gives such a list LibTorch's.
void settle_list_type(c10::IValue& argument);

// Calls `visit(tensor, argument, element)` for each tensor that is an argument or stands in a list
// that is one, defined or not; element is -1 for one that stands alone.
template <class F>
void visit_arguments(at::ArrayRef<c10::IValue> arguments, F&& visit) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (argument.isTensor()) {
      visit(argument.toTensor(), i, -1);
    } else if (argument.isList()) {
      const auto list = argument.toListRef();
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (list[k].isTensor()) visit(list[k].toTensor(), i, static_cast<int>(k));
      }
    }
  }
}

}  // namespace reprise::libtorch
