// Calls that touch nothing but meta tensors go on as they are. Any other starts anew at the meta
// device's kernel: the keys that it came with are those of other devices.
#include "libtorch/meta/on_meta.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <string>

#include "libtorch/autograd/graph_reach.h"
#include "libtorch/memory/managed_memory.h"
#include "libtorch/meta/meta_errors.h"
#include "libtorch/operators/argument_holders.h"
#include "libtorch/operators/operator_facts.h"

namespace reprise::libtorch {

namespace {

const c10::Device kMetaDevice(c10::kMeta);

// What aten::equal gives where that needs no values: attention asks it of its query and key, to see
// whether they are one tensor.
std::optional<bool> equal_without_values(const OperatorCall& call,
                                         const std::vector<c10::IValue>& arguments) {
  if (call.schema().name() != "aten::equal") return std::nullopt;
  const at::Tensor& one = arguments[0].toTensor();
  const at::Tensor& other = arguments[1].toTensor();
  if (one.sizes() != other.sizes()) return false;
  const bool is_same = share_memory(one, other) && one.storage_offset() == other.storage_offset() &&
                       one.strides() == other.strides();
  return is_same ? std::optional(true) : std::nullopt;
}

}  // namespace

c10::Storage meta_storage(std::size_t bytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::int64_t>(bytes),
                      c10::GetAllocator(c10::kMeta), /*resizable=*/true);
}

at::Tensor on_meta_storage(const at::Tensor& form, const c10::Storage& meta) {
  at::Tensor tensor = at::detail::empty_strided_meta({0}, {1}, form.scalar_type());
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(meta);
  impl->set_storage_offset(form.storage_offset());
  impl->set_sizes_and_strides(form.sizes(), form.strides());
  if (form.is_conj()) impl->_set_conj(true);
  if (form.is_neg()) impl->_set_neg(true);
  return tensor;
}

std::string OnMeta::trained_elsewhere() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return trained_elsewhere_.empty() ? "" : c10::str(trained_elsewhere_.front().first.sizes());
}

void OnMeta::drop_gradients_elsewhere() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [tensor, gradient] : trained_elsewhere_) {
    if (tensor.grad().defined() && tensor.grad().is_meta()) tensor.mutable_grad() = gradient;
  }
}

std::string OnMeta::made_before(const at::Tensor* result) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const at::Tensor& each : made_before_) {
    if (result == nullptr || leads_to(*result, each)) return c10::str(each.sizes());
  }
  return "";
}

void OnMeta::note_if_differentiable(const at::Tensor& elsewhere) {
  if (!c10::GradMode::is_enabled() || !elsewhere.requires_grad()) return;
  const auto is_it = [&](const at::Tensor& noted) { return noted.is_same(elsewhere); };
  if (!elsewhere.is_leaf()) {
    if (std::ranges::none_of(made_before_, is_it)) made_before_.push_back(elsewhere);
  } else if (std::ranges::none_of(trained_elsewhere_, is_it, &TrainedElsewhere::first)) {
    trained_elsewhere_.emplace_back(elsewhere, elsewhere.grad());
  }
}

at::Tensor OnMeta::stand_in_for(const at::Tensor& tensor) {
  const c10::Storage& real = tensor.storage();
  auto found = stand_ins_.find(real.unsafeGetStorageImpl());
  if (found == stand_ins_.end()) {
    found =
        stand_ins_.emplace(real.unsafeGetStorageImpl(), StandIn{real, meta_storage(real.nbytes())})
            .first;
    stands_in(found->second.meta);
  }
  return on_meta_storage(tensor, found->second.meta);
}

// Whether it has been changed.
bool OnMeta::put_on_meta(c10::IValue& value, bool is_written) {
  const auto is_elsewhere = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_meta() || !tensor.has_storage()) return false;
    note_if_differentiable(tensor);
    return tensor.dim() > 0 || is_written;
  };
  if (value.isTensor()) {
    if (!is_elsewhere(value.toTensor())) return false;
    value = stand_in_for(value.toTensor());
    return true;
  }
  if (value.isDevice()) {
    if (value.toDevice() == kMetaDevice) return false;
    value = kMetaDevice;
    return true;
  }
  bool changed = false;
  if (value.isTensorList()) {
    const std::vector<at::Tensor> tensors = value.toTensorVector();
    for (const at::Tensor& each : tensors) changed |= is_elsewhere(each);
    if (!changed) return false;
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : tensors) {
      list.push_back(is_elsewhere(each) ? stand_in_for(each) : each);
    }
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      if (each && is_elsewhere(*each)) {
        changed = true;
        *each = stand_in_for(*each);
      }
      list.push_back(std::move(each));
    }
    if (changed) value = std::move(list);
  }
  return changed;
}

bool OnMeta::put_arguments_on_meta(OperatorCall& call, std::vector<c10::IValue>& arguments) {
  const auto& schema = call.schema().arguments();
  const auto& writes = facts_of(call.handle()).writes;
  bool is_changed = false, has_tensor = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = arguments[i];
    // A factory that names no device means the default one.
    const bool means_default = value.isNone() && schema[i].name() == "device";
    if (means_default) value = c10::Device(c10::kCPU);
    const bool is_written = std::ranges::any_of(writes, [&](const OperatorFacts::Write& write) {
      return write.argument == i && write.happens(call.arguments());
    });
    const bool is_put = put_on_meta(value, is_written);
    // With a tensor to go by, no device means that tensor's.
    if (means_default && has_tensor) {
      value = c10::IValue();
    } else {
      is_changed |= is_put;
    }
    has_tensor |= value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
  }
  if (is_changed) {
    for (std::size_t i = 0; i < arguments.size(); ++i) call.replace_argument(i, arguments[i]);
  }
  return is_changed;
}

// On real devices the engine lets go of neither: it adds to the first, if nobody else holds that.
bool OnMeta::adds_in_place(const OperatorCall& call) const {
  if (call.schema().name() != "aten::add" || !sums_gradients()) return false;
  if (c10::GradMode::is_enabled() || !call.arguments()[1].isTensor()) return false;
  const at::Tensor& sum = call.arguments()[0].toTensor();
  const at::Tensor& other = call.arguments()[1].toTensor();
  return sum.is_meta() && other.is_meta() && sum.has_storage() && other.has_storage() &&
         !sum._is_zerotensor() && sum.is_non_overlapping_and_dense() &&
         sum.use_count() == holders_of_an_argument() && sum.storage().use_count() == 1 &&
         sum.sizes() == other.sizes() && sum.dtype() == other.dtype();
}

void OnMeta::intercept(OperatorCall& call) {
  const bool is_in_place = adds_in_place(call);
  std::vector<c10::IValue> arguments = call.arguments().vec();
  bool is_changed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_changed = put_arguments_on_meta(call, arguments);
    if (const auto equal = equal_without_values(call, arguments)) return call.answer({*equal});
    before(call);
  }
  if (is_in_place) call.answer({arguments[0]});
  try {
    if (!is_in_place) run(call, arguments, is_changed);
  } catch (const c10::Error& error) {
    explain_on_meta(error);
    throw;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  after(call, arguments);
}

void OnMeta::run(OperatorCall& call, const std::vector<c10::IValue>& arguments, bool is_changed) {
  if (!is_changed) return call.proceed();
  std::vector<c10::IValue> stack = arguments;
  call.handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  call.answer(stack);
}

bool is_on_meta() {
  for (const auto* link = innermost_interceptor(); link != nullptr;
       link = link_in_force(link->outer.get())) {
    if (dynamic_cast<const OnMeta*>(link->interceptor.get()) != nullptr) return true;
  }
  return false;
}

}  // namespace reprise::libtorch
