// What all stores share (reprise/store.h): which tensors can be parked at all, their flat form, the
// check that nobody changed them meanwhile, and the counts.
#include "reprise/store.h"

#include <c10/core/GradMode.h>

#include <sstream>
#include <utility>

#include "libtorch/base/thread_state.h"
#include "libtorch/memory/managed_memory.h"
#include "store/flat.h"

namespace reprise {

// Around what the store itself made of the flat tensor; null where there are no elements.
class Store::Ticket final : public ParkedTensor {
 public:
  template <class ParkFlat>
  Ticket(std::shared_ptr<Store> store, const at::Tensor& tensor, const ParkFlat& park_flat)
      : store_(std::move(store)),
        form_(tensor),
        dtype_(tensor.scalar_type()),
        device_(tensor.device()),
        counter_(tensor.unsafeGetTensorImpl()->version_counter()),
        version_(counter_.enabled() ? counter_.current_version() : 0),
        bytes_(form_.length() * static_cast<std::int64_t>(tensor.dtype().itemsize())) {
    if (form_.length() > 0) {
      const c10::AutoGradMode no_grad(false);
      const libtorch::OwnWorkScope own;
      const at::Tensor flat = form_.flatten(tensor);
      // Whatever the store allocates while it reads, a budget makes no room with this value.
      const libtorch::HeldMemory held(flat);
      inner_ = park_flat(flat);
    }
    ++store_->count_;
    store_->parked_ += bytes_.count;
  }

  ~Ticket() override {
    inner_.reset();
    --store_->count_;
    store_->parked_ -= bytes_.count;
  }

  at::Tensor load() override {
    check_version();
    const c10::AutoGradMode no_grad(false);
    const libtorch::OwnWorkScope own;
    if (inner_ == nullptr) return form_.restore_empty();
    const at::Tensor flat = inner_->load();
    check(flat);
    return form_.restore(flat);
  }

  bool prefetch() override { return inner_ != nullptr && inner_->prefetch(); }
  Bytes bytes() const override { return bytes_; }

 private:
  void check_version() const {
    if (!counter_.enabled() || counter_.current_version() == version_) return;
    std::ostringstream text;
    text << store_->name() << ": a tensor of " << to_string(bytes_)
         << " was changed in place while it was parked (it is at version "
         << counter_.current_version() << ", was parked at " << version_
         << "), so its value is lost; park a copy, or change a copy";
    throw UsageError(text.str());
  }

  // For the mistakes of a new store.
  void check(const at::Tensor& flat) const {
    if (flat.defined() && flat.dim() == 1 && flat.size(0) == form_.length() &&
        flat.is_contiguous() && flat.scalar_type() == dtype_ && flat.device() == device_) {
      return;
    }
    std::ostringstream text;
    text << store_->name() << " was given " << dtype_ << " [" << form_.length() << "] on "
         << device_ << " and gave back ";
    if (flat.defined()) {
      text << flat.scalar_type() << " " << flat.sizes() << " on " << flat.device();
    } else {
      text << "an undefined tensor";
    }
    text << "; what park_flat() makes must return a contiguous tensor of the same";
    throw StoreError(text.str());
  }

  // Last to go: what is parked refers to it.
  const std::shared_ptr<Store> store_;
  const store::FlatForm form_;
  const at::ScalarType dtype_;
  const c10::Device device_;
  const c10::VariableVersion counter_;
  const std::uint32_t version_;
  const Bytes bytes_;
  std::unique_ptr<ParkedTensor> inner_;
};

namespace {

// A managed storage may be hollow now, and can be filled.
bool has_memory(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  return libtorch::ManagedMemory::manager_of(storage) != nullptr ||
         storage._mutable_data_ptr_no_checks().get() != nullptr;
}

}  // namespace

const char* Store::cannot_park(const at::Tensor& tensor) {
  if (!tensor.defined()) return "it is undefined";
  if (tensor.is_nested()) return "it is nested";
  if (tensor.layout() != at::kStrided) return "its layout is not strided";
  if (tensor.is_quantized()) return "it is quantized";
  // Subclasses of Python and of functorch: the memory is not the whole of them.
  const c10::DispatchKeySet keys = tensor.key_set();
  for (const c10::DispatchKey key :
       {c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
        c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize,
        c10::DispatchKey::Batched, c10::DispatchKey::Fake}) {
    if (keys.has(key)) return "it is a wrapper around another tensor";
  }
  if (tensor.device().is_meta() || keys.has(c10::DispatchKey::ZeroTensor) ||
      !tensor.has_storage() || (tensor.numel() > 0 && !has_memory(tensor))) {
    return "it has no memory";
  }
  return nullptr;
}

std::unique_ptr<ParkedTensor> Store::park(const at::Tensor& tensor) {
  return park_by(tensor, [this](const at::Tensor& flat) { return park_flat(flat); });
}

std::unique_ptr<ParkedTensor> Store::park_by(
    const at::Tensor& tensor,
    const std::function<std::unique_ptr<ParkedTensor>(const at::Tensor& flat)>& park_flat) {
  if (const char* reason = cannot_park(tensor)) {
    throw UsageError(name() + ": the tensor cannot be parked, because " + reason +
                     "; park strided tensors that have memory of their own");
  }
  if (!takes(tensor.device())) {
    throw UsageError(name() + " does not take tensors on " + tensor.device().str() +
                     "; host_store() is for those on an accelerator, disk_store() for those in "
                     "host memory");
  }
  const std::shared_ptr<Store> self = weak_from_this().lock();
  if (self == nullptr) {
    throw UsageError(name() + " is not held by a shared_ptr; make it with std::make_shared");
  }
  return std::make_unique<Ticket>(self, tensor, park_flat);
}

StoreStatistics Store::statistics() const {
  return {.count = count_,
          .parked = Bytes(parked_),
          .waiting = Bytes(waiting_),
          .written = Bytes(written_),
          .read = Bytes(read_)};
}

}  // namespace reprise
