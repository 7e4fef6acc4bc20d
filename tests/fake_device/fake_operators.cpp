#include "tests/fake_device/fake_operators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fake_device/fake_device.h"
#include "tests/fake_device/fake_memory.h"

namespace reprise::testing_support {
namespace {

using c10::IValue;
using torch::jit::Stack;

std::atomic<std::int64_t> workspace{0};
std::atomic<std::int64_t> operators{0};

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

c10::Storage new_storage(std::size_t bytes, c10::Device device) {
  const c10::DeviceGuard guard(device);
  auto* const allocator = c10::GetAllocator(c10::kPrivateUse1);
  return {c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
          /*resizable=*/true};
}

at::Tensor tensor_like(const at::Tensor& model, c10::Storage storage, c10::DispatchKey backend) {
  c10::DispatchKeySet keys(backend);
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    if (model.key_set().has(key)) keys = keys.add(key);
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, model.dtype());
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(model.sizes(), model.strides(), model.storage_offset());
  if (model.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

// One call: the CPU's view of its tensors, and the way back.
class Call {
 public:
  // The memory of a fake tensor as a CPU tensor. A hollow storage throws here, as it would in any
  // kernel.
  at::Tensor on_host(const at::Tensor& tensor, bool is_written) {
    if (!is_fake(tensor)) return tensor;
    if (!device_) device_ = tensor.device();
    auto& storage = *tensor.storage().unsafeGetStorageImpl();
    auto found = aliases_.find(&storage);
    if (found == aliases_.end()) {
      auto* const data = const_cast<void*>(storage.data());
      found =
          aliases_
              .emplace(&storage, Alias{tensor.storage(),
                                       {c10::Storage::use_byte_size_t(), storage.nbytes(),
                                        c10::DataPtr(data, c10::kCPU), c10::GetAllocator(c10::kCPU),
                                        /*resizable=*/true},
                                       data,
                                       false})
              .first;
    }
    found->second.is_written = found->second.is_written || is_written;
    at::Tensor host = tensor_like(tensor, found->second.host, c10::DispatchKey::CPU);
    pairs_.emplace_back(host, tensor);
    return host;
  }

  IValue argument(const IValue& value, bool is_written, const c10::Argument& declared) {
    if (value.isTensor()) return on_host(value.toTensor(), is_written);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(on_host(t, is_written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const IValue& e : value.toListRef()) {
        list.push_back(e.isTensor() ? std::optional(on_host(e.toTensor(), is_written))
                                    : std::nullopt);
      }
      return list;
    }
    if (value.isDevice() && value.toDevice().is_privateuseone()) {
      if (!device_) device_ = value.toDevice();
      return c10::Device(c10::kCPU);
    }
    const bool is_generator =
        declared.type()->str() == "Generator?" || declared.type()->str() == "Generator";
    if (is_generator) generator_ = value;
    return value;
  }

  c10::Device device() {
    if (!device_ || !device_->has_index()) {
      device_ = c10::impl::getDeviceGuardImpl(c10::kPrivateUse1)->getDevice();
    }
    return *device_;
  }

  // A generator of the CPU that draws what is the device's turn.
  at::Generator draws() {
    at::Generator own = generator_ && generator_->isGenerator()
                            ? generator_->toGenerator()
                            : at::globalContext().defaultGenerator(device());
    return at::detail::createCPUGenerator(own.get<FakeGenerator>()->draw());
  }
  bool takes_generator() const { return generator_.has_value(); }

  // What was made larger gets memory of the device; shapes follow.
  void bring_back_arguments() {
    for (auto& [impl, alias] : aliases_) {
      auto& host = *alias.host.unsafeGetStorageImpl();
      if (host.data() == alias.data && host.nbytes() == impl->nbytes()) continue;
      c10::Storage larger = new_storage(host.nbytes(), device());
      if (host.nbytes() != 0) std::memcpy(larger.mutable_data(), host.data(), host.nbytes());
      impl->set_data_ptr(larger.set_data_ptr(c10::DataPtr(nullptr, device())));
      impl->set_nbytes(host.nbytes());
    }
    for (auto& [host, tensor] : pairs_) {
      if (host.sizes() == tensor.sizes() && host.strides() == tensor.strides()) continue;
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(),
                                                          host.storage_offset());
    }
  }

  at::Tensor result(const at::Tensor& host) {
    if (!host.defined()) return host;
    for (const auto& [alias, tensor] : pairs_) {
      if (alias.is_same(host)) return tensor;
    }
    for (const auto& [impl, alias] : aliases_) {
      if (host.is_alias_of(tensor_like(host, alias.host, c10::DispatchKey::CPU))) {
        return tensor_like(host, alias.storage, c10::DispatchKey::PrivateUse1);
      }
    }
    c10::Storage storage = new_storage(host.storage().nbytes(), device());
    if (storage.nbytes() != 0) {
      std::memcpy(storage.mutable_data(), host.storage().data(), storage.nbytes());
    }
    made_.push_back(storage.data());
    return tensor_like(host, std::move(storage), c10::DispatchKey::PrivateUse1);
  }
  IValue result(const IValue& value) {
    if (value.isTensor()) return result(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(result(tensor));
    return list;
  }

  // For the watch: what the kernel has used, on the current stream.
  void tell() {
    const auto index = device().index();
    std::size_t bytes = 0;
    for (const auto& [impl, alias] : aliases_) bytes += impl->nbytes();
    const Point point = FakeStreams::of(index).give(current_fake_stream(index).id(),
                                                    1e-6 + static_cast<double>(bytes) * 1e-9);
    for (const auto& [impl, alias] : aliases_) {
      FakeMemory::used(alias.data, point, alias.is_written);
    }
    for (const void* data : made_) FakeMemory::used(data, point, true);
  }

 private:
  struct Alias {
    c10::Storage storage;
    c10::Storage host;
    const void* data;
    bool is_written;
  };
  std::map<c10::StorageImpl*, Alias> aliases_;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
  std::vector<const void*> made_;
  std::optional<c10::Device> device_;
  std::optional<IValue> generator_;
};

// Operators whose results the host has to know before it goes on.
bool makes_host_wait(std::string_view name) {
  return name == "aten::_local_scalar_dense" || name == "aten::nonzero" ||
         name == "aten::masked_select" || name == "aten::equal" || name == "aten::_unique2";
}

bool is_product(std::string_view name) {
  return name == "aten::mm" || name == "aten::addmm" || name == "aten::bmm";
}

void run_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  Call call;
  Stack host;
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& declared = schema.arguments()[i];
    const bool is_written = declared.alias_info() != nullptr && declared.alias_info()->isWrite();
    host.push_back(call.argument(arguments[i], is_written, declared));
  }
  const c10::DeviceGuard guard(call.device());
  ++operators;
  // As kernels do, before they compute.
  c10::Storage beside;
  if (workspace != 0 && is_product(schema.name())) {
    beside = new_storage(static_cast<std::size_t>(workspace), call.device());
  }
  at::AutoDispatchBelowADInplaceOrView below;
  std::optional<at::Tensor> state;
  at::Generator host_default = at::detail::getDefaultCPUGenerator();
  if (call.takes_generator()) {
    for (std::size_t i = 0; i < host.size(); ++i) {
      if (schema.arguments()[i].type()->str() == "Generator?") host[i] = call.draws();
    }
  } else if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    state = host_default.get_state();
    host_default.set_state(call.draws().get_state());
  }
  op.callBoxed(&host);
  if (state) host_default.set_state(*state);
  call.bring_back_arguments();
  std::vector<IValue> results;
  for (const IValue& value : host) results.push_back(call.result(value));
  call.tell();
  if (makes_host_wait(schema.name())) FakeStreams::of(call.device().index()).host_reads();
  torch::jit::drop(*stack, schema.arguments().size());
  stack->insert(stack->end(), results.begin(), results.end());
}

void fallback(const c10::OperatorHandle& op, Stack* stack) { run_on_host(op, stack); }

// The current stream of `later` waits for that of `earlier`.
void order_streams(c10::DeviceIndex earlier, c10::DeviceIndex later) {
  FakeStreams::of(later).wait(current_fake_stream(later).id(),
                              FakeStreams::of(earlier).mark(current_fake_stream(earlier).id()));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  Call call;
  const at::Tensor from = call.on_host(source, false);
  const at::Tensor to = call.on_host(target, true);
  const at::AutoDispatchBelowADInplaceOrView below;
  // A copy that blocks is ordered with the streams of both devices, as CUDA's are. Others are not:
  // the program has to do it.
  const bool is_ordered =
      !non_blocking && is_fake(source) && is_fake(target) && source.device() != target.device();
  if (is_ordered) order_streams(target.device().index(), source.device().index());
  at::Tensor(to).copy_(from);
  call.tell();
  if (is_ordered) order_streams(source.device().index(), target.device().index());
  if (!non_blocking && is_fake(source) != is_fake(target)) {
    FakeStreams::of(call.device().index()).host_reads();
  }
  return target;
}

at::Tensor& set(at::Tensor& tensor, at::Storage storage, std::int64_t offset, c10::IntArrayRef size,
                c10::IntArrayRef stride) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  c10::getDeviceAllocator(c10::kPrivateUse1)->recordStream(tensor.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Lets modules be moved here: LibTorch lists the backends whose tensors may take each other's place,
// and this one is not among them.
bool may_take_the_place(const at::Tensor&, const at::Tensor&) { return true; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", &may_take_the_place);
  library.impl("_copy_from", &copy_from);
  library.impl("set_.source_Storage_storage_offset", &set);
  library.impl("record_stream", &record_stream);
  // Views look at no memory.
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
}

}  // namespace

void set_fake_workspace(std::int64_t bytes) { workspace = bytes; }
std::int64_t fake_operators_run() { return operators; }

}  // namespace reprise::testing_support
