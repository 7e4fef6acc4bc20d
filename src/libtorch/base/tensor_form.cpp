// The keys that a plain tensor may have are listed here; what has any other is left to others.
#include "libtorch/base/tensor_form.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/impl/COWDeleter.h>

#include <optional>
#include <utility>

namespace reprise::libtorch {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// What a plain tensor's keys may be besides its backend.
constexpr DispatchKeySet kPlainKeys =
    DispatchKeySet({DispatchKey::Dense, DispatchKey::ADInplaceOrView,
                    DispatchKey::AutogradFunctionality, DispatchKey::Conjugate,
                    DispatchKey::Negative}) |
    c10::autocast_dispatch_keyset | DispatchKeySet(DispatchKeySet::RAW, c10::full_backend_mask);

// Several storages share such memory, and LibTorch tells it by the deleter.
bool is_copied_on_write(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_deleter() ==
         c10::impl::cow::cow_deleter;
}

}  // namespace

TensorForm TensorForm::of(const at::Tensor& tensor) {
  TensorForm form;
  form.take(tensor);
  return form;
}

void TensorForm::take(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  sizes.assign(impl.sizes().begin(), impl.sizes().end());
  strides.assign(impl.strides().begin(), impl.strides().end());
  offset = impl.storage_offset();
  dtype = impl.dtype();
  keys = impl.key_set();
  wrapped_number = impl.is_wrapped_number();
}

bool TensorForm::is_of(const at::Tensor& tensor) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return keys == impl.key_set() && dtype == impl.dtype() && offset == impl.storage_offset() &&
         impl.sizes().equals(sizes) && impl.strides().equals(strides) &&
         wrapped_number == impl.is_wrapped_number();
}

at::Tensor TensorForm::on(c10::Storage storage) const {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, dtype);
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  impl.set_sizes_and_strides(sizes, strides, offset);
  if (wrapped_number) impl.set_wrapped_number(true);
  return tensor;
}

bool is_plain(const at::Tensor& tensor, c10::DeviceType device) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const std::uint64_t others = impl.key_set().raw_repr() & ~kPlainKeys.raw_repr();
  return others == 0 && impl.has_storage() && impl.device_type() == device &&
         !impl.has_symbolic_sizes_strides() && impl.layout() == c10::kStrided &&
         !is_copied_on_write(impl.unsafe_storage());
}

void visit_storages(const at::Tensor& tensor,
                    const std::function<void(const c10::Storage&)>& visit) {
  if (!tensor.defined()) return;
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (impl->has_storage()) visit(impl->unsafe_storage());
  if (const auto* nested = dynamic_cast<const at::native::NestedTensorImpl*>(impl)) {
    visit_storages(nested->get_nested_sizes(), visit);
    visit_storages(nested->get_nested_strides(), visit);
    visit_storages(nested->get_storage_offsets(), visit);
  } else if (const auto* sparse = dynamic_cast<const at::SparseTensorImpl*>(impl)) {
    visit_storages(sparse->indices(), visit);
    visit_storages(sparse->values(), visit);
  } else if (const auto* compressed = dynamic_cast<const at::SparseCsrTensorImpl*>(impl)) {
    visit_storages(compressed->compressed_indices(), visit);
    visit_storages(compressed->plain_indices(), visit);
    visit_storages(compressed->values(), visit);
  }
}

void visit_deeper(const c10::IValue& argument,
                  const std::function<void(const c10::Storage&)>& visit) {
  if (argument.isTensor()) {
    visit_storages(argument.toTensor(), visit);
  } else if (argument.isStorage()) {
    visit(argument.toStorage());
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) visit_deeper(element, visit);
  } else if (argument.isTuple()) {
    for (const c10::IValue& element : argument.toTupleRef().elements()) {
      visit_deeper(element, visit);
    }
  } else if (argument.isGenericDict()) {
    for (const auto& entry : argument.toGenericDict()) visit_deeper(entry.value(), visit);
  }
}

void settle_list_type(c10::IValue& argument) {
  if (!argument.isList()) return;
  const auto elements = argument.toListRef();
  // At every call: most lists are of numbers.
  if (elements.empty() || !(elements[0].isTensor() || elements[0].isNone())) return;
  if (argument.isTensorList() || argument.isOptionalTensorList()) return;
  if (*argument.toList().elementType() != *c10::OptionalType::ofTensor()) return;
  c10::List<std::optional<at::Tensor>> list;
  for (const c10::IValue& each : elements) list.push_back(each.toOptional<at::Tensor>());
  argument = std::move(list);
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

std::int64_t leading_bytes(const at::Tensor& tensor) {
  const bool leads = tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense();
  return leads ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

}  // namespace reprise::libtorch
