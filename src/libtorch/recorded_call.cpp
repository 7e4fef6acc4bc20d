#include "libtorch/recorded_call.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "libtorch/backends_only.h"
#include "libtorch/operator_effects.h"

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

// Everything above the backends.
const DispatchKeySet& above_backends() {
  static const DispatchKeySet keys =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      DispatchKeySet({DispatchKey::Fake, DispatchKey::TESTING_ONLY_GenericMode,
                      DispatchKey::CustomRNGKeyId, kEffectKey, DispatchKey::Python,
                      DispatchKey::PythonTLSSnapshot, DispatchKey::PythonDispatcher,
                      DispatchKey::FuncTorchDynamicLayerFrontMode,
                      DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::Functionalize});
  return keys;
}

}  // namespace

BackendsOnly::BackendsOnly() : guard_(above_backends()) {}

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
         !impl.has_symbolic_sizes_strides() && impl.layout() == c10::kStrided;
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
                  const std::function<void(const at::Tensor&)>& visit) {
  if (argument.isTensor()) {
    visit(argument.toTensor());
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

bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

std::int64_t leading_bytes(const at::Tensor& tensor) {
  const bool leads = tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense();
  return leads ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

RecordedCall::RecordedCall(const OperatorCall& call)
    : op_(call.handle()), grad_mode_(c10::GradMode::is_enabled()) {
  const auto arguments = call.arguments();
  arguments_.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    const auto add = [&](const at::Tensor& tensor, int element) {
      if (!tensor.defined()) return;
      // In its place: this is done for every operator.
      Slot& slot = slots_.emplace_back();
      slot.argument = static_cast<std::uint16_t>(i);
      slot.element = static_cast<std::int16_t>(element);
      slot.form.take(tensor);
    };
    if (argument.isTensor()) {
      add(argument.toTensor(), -1);
      arguments_.emplace_back(at::Tensor());
    } else if (argument.isTensorList()) {
      const auto list = argument.toListRef();
      c10::List<at::Tensor> empty;
      for (std::size_t k = 0; k < list.size(); ++k) {
        add(list[k].toTensor(), static_cast<int>(k));
        empty.push_back(at::Tensor());
      }
      arguments_.emplace_back(std::move(empty));
    } else if (argument.isOptionalTensorList()) {
      const auto list = argument.toListRef();
      c10::List<std::optional<at::Tensor>> empty;
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (list[k].isTensor()) add(list[k].toTensor(), static_cast<int>(k));
        empty.push_back(std::nullopt);
      }
      arguments_.emplace_back(std::move(empty));
    } else {
      arguments_.push_back(argument);
    }
  }
}

std::string RecordedCall::name() const {
  const auto& schema = op_.schema();
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

std::uint64_t RecordedCall::signature() const {
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(&op_.schema());
  const auto add = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  for (const Slot& slot : slots_) {
    add(slot.form.dtype.itemsize() << 16 | slot.form.sizes.size() << 8 | slot.argument);
    for (const std::int64_t size : slot.form.sizes) add(static_cast<std::uint64_t>(size));
  }
  for (const c10::IValue& argument : arguments_) {
    if (argument.isInt()) {
      add(static_cast<std::uint64_t>(argument.toInt()));
    } else if (argument.isBool()) {
      add(static_cast<std::uint64_t>(argument.toBool()));
    } else if (argument.isIntList()) {
      for (const std::int64_t value : argument.toIntList()) add(static_cast<std::uint64_t>(value));
    } else if (argument.isBoolList()) {
      for (const bool value : argument.toBoolList()) add(static_cast<std::uint64_t>(value));
    }
  }
  return hash;
}

std::vector<c10::IValue> RecordedCall::run(
    const std::function<c10::Storage(std::size_t)>& storage_of,
    const at::Generator& generator) const {
  std::vector<c10::IValue> stack;
  stack.reserve(arguments_.size());
  for (const c10::IValue& argument : arguments_) {
    if (argument.isTensorList()) {
      stack.emplace_back(argument.toTensorList().copy());
    } else if (argument.isOptionalTensorList()) {
      stack.emplace_back(argument.toOptionalTensorList().copy());
    } else {
      stack.push_back(argument);
    }
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    at::Tensor tensor = slot.form.on(storage_of(i));
    c10::IValue& argument = stack[slot.argument];
    if (slot.element < 0) {
      argument = std::move(tensor);
    } else if (argument.isTensorList()) {
      argument.toTensorList().set(static_cast<std::size_t>(slot.element), std::move(tensor));
    } else {
      argument.toOptionalTensorList().set(static_cast<std::size_t>(slot.element),
                                          std::move(tensor));
    }
  }
  if (generator.defined()) {
    stack[static_cast<std::size_t>(facts_of(op_).generator)] = generator;
  }
  const c10::AutoGradMode grad_mode(grad_mode_);
  const BackendsOnly below;
  op_.callBoxed(stack);
  return stack;
}

}  // namespace reprise::libtorch
