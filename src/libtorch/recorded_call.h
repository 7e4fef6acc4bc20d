// One operator call, kept so that it can be made again: the operator, its arguments that are no
// tensors, and of its tensors how they lie on their memory. The memory itself is somebody else's
// business: recording raises no use count of a tensor or a storage.
//
// It is run again below autograd, with everything above the backends off (autocast, functorch,
// Python): what was recorded there has been through all that.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <string>
#include <vector>

#include "libtorch/operator_facts.h"
#include "libtorch/operator_interceptor.h"

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
  at::Tensor on(c10::Storage storage) const;
};

// A tensor that is nothing but strided elements on a storage of this kind of device: neither
// sparse, nested, quantized nor a wrapper, with memory, and on no other device.
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

class RecordedCall {
 public:
  // Where a tensor stands: argument number, and number in the list if it is one.
  struct Slot {
    std::uint16_t argument;
    std::int16_t element;
    TensorForm form;
  };

  // Of a call that has not been made.
  explicit RecordedCall(const OperatorCall& call);

  // The defined tensors among the arguments, in order.
  const c10::SmallVector<Slot, 3>& slots() const { return slots_; }
  std::string name() const;
  // The same for calls of one operator whose tensors have the same shapes and types, and whose
  // whole numbers and flags are the same: they take about the same time.
  std::uint64_t signature() const;

  // Makes the call again. `storage_of` gives each slot's memory. It draws from `generator`, if that
  // is defined. The results.
  std::vector<c10::IValue> run(const std::function<c10::Storage(std::size_t)>& storage_of,
                               const at::Generator& generator) const;

 private:
  c10::OperatorHandle op_;
  // Tensors left out.
  c10::SmallVector<c10::IValue, 5> arguments_;
  c10::SmallVector<Slot, 3> slots_;
  // Some kernels make workspaces for backward only where gradients are wanted.
  bool grad_mode_;
};

// The tensors in an argument that visit_arguments() passes over: lists of lists, dictionaries.
void visit_deeper(const c10::IValue& argument, const std::function<void(const at::Tensor&)>& visit);
// Whether there may be any.
inline bool may_go_deeper(const c10::IValue& argument) {
  if (argument.isGenericDict() || argument.isTuple()) return true;
  if (!argument.isList()) return false;
  const auto list = argument.toListRef();
  return !list.empty() && (list[0].isList() || list[0].isGenericDict() || list[0].isTuple());
}

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
