#include "libtorch/autograd/saved_tensor.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <sstream>

namespace reprise::libtorch {
namespace {

// The end of autograd's text about a change in place.
std::string anomaly_hint() {
  if (torch::autograd::AnomalyMode::is_enabled()) {
    return " Hint: the backtrace further above shows the operation that failed to compute its "
           "gradient. The variable in question was changed in there or anywhere later. Good luck!";
  }
  return std::string(
             " Hint: enable anomaly detection to find the operation that failed to compute its "
             "gradient, with ") +
         kAnomalyCall;
}

}  // namespace

at::Tensor without_history(const at::Tensor& tensor) {
  return tensor.requires_grad() ? alias_without_history(tensor) : tensor;
}

at::Tensor alias_without_history(const at::Tensor& tensor) {
  const c10::TensorImpl& original = *tensor.unsafeGetTensorImpl();
  return at::Tensor(original.shallow_copy_and_detach(original.version_counter(),
                                                     original.allow_tensor_metadata_change()));
}

at::Tensor alias_with_own_counter(const at::Tensor& tensor) {
  const c10::TensorImpl& original = *tensor.unsafeGetTensorImpl();
  return at::Tensor(original.shallow_copy_and_detach(c10::VariableVersion(/*version=*/0),
                                                     original.allow_tensor_metadata_change()));
}

bool is_parameter(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return false;
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta->is_view_) return meta->grad_fn_ == nullptr;
  // The base alone tells: a view made without grad mode may be a leaf itself.
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (view == nullptr || !view->has_bw_view()) return tensor.is_leaf();
  const at::Tensor& base = view->get_backward_view().base_;
  return base.requires_grad() && base.is_leaf();
}

bool same_counter(const c10::VariableVersion& a, const c10::VariableVersion& b) {
  // Nothing but a pointer to the count, which LibTorch does not show.
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  return std::memcmp(static_cast<const void*>(&a), static_cast<const void*>(&b),
                     sizeof(c10::VariableVersion)) == 0;
}

WeakNode::WeakNode(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr) return;
  output_ = meta->output_nr_;
  // A view's own entry may be out of date; asking for it is dear.
  node_ = weak_pointer(meta->is_view_ ? tensor.grad_fn() : meta->grad_fn_);
}

std::string WeakNode::describe() const {
  const auto node = node_.lock();
  return node ? "output " + std::to_string(output_) + " of " + forward_name_of(*node)
              : std::string();
}

void SavedVersion::check(const at::Tensor& tensor, const c10::VariableVersion& counter,
                         const WeakNode& node) const {
  const std::uint32_t now = counter.current_version();
  if (now == version_) return;
  std::ostringstream text;
  text << "one of the variables needed for gradient computation has been modified by an inplace "
          "operation: ["
       << tensor.toString() << " " << tensor.sizes() << "]";
  if (const std::string origin = node.describe(); !origin.empty())
    text << ", which is " << origin << ",";
  text << " is at version " << now << "; expected version " << version_ << " instead."
       << anomaly_hint();
  TORCH_CHECK(false, text.str());
}

SavedTensor::SavedTensor(const at::Tensor& tensor) : saved_(tensor, /*is_output=*/false) {
  if (!tensor.defined()) return;
  counter_ = tensor.unsafeGetTensorImpl()->version_counter();
  version_ = counter_.current_version();
  if (saved_.has_hooks() && tensor.has_storage()) {
    storage_ = tensor.storage().getWeakStorageImpl();
  }
}

at::Tensor SavedTensor::unpack() const { return adopted_.defined() ? adopted_ : saved_.unpack(); }

at::Tensor SavedTensor::unpack_changed() const {
  if (changes().value_or(0) == 0) return unpack();
  return *saved_.get_raw_data();
}

std::optional<std::int64_t> SavedTensor::changes() const {
  if (saved_.has_hooks() || !counter_.enabled()) return std::nullopt;
  return counter_.current_version() - version_;
}

std::int64_t SavedTensor::changes_behind_hook() const {
  return saved_.has_hooks() && counter_.enabled() ? counter_.current_version() - version_ : 0;
}

bool SavedTensor::is_original(const at::Tensor& tensor) const {
  return storage_ && tensor.has_storage() &&
         storage_->_unsafe_get_target() == tensor.storage().unsafeGetStorageImpl();
}

void SavedTensor::adopt_changes() {
  const auto data = saved_.get_raw_data();
  const bool requires_grad = data->requires_grad();
  adopted_ = data->tensor_data();
  adopted_.set_requires_grad(requires_grad);
  saved_ = {};
  counter_ = {};
}

}  // namespace reprise::libtorch
