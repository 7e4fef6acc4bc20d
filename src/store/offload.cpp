// The offload scope (reprise/offload.h): which saved tensors are parked, and how each is made again
// from the memory that was.
#include "reprise/offload.h"

#include <c10/core/GradMode.h>

#include <optional>
#include <utility>
#include <variant>

#include "core/recycling_allocator.h"
#include "libtorch/autograd/engine.h"
#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/base/leaving_errors.h"
#include "libtorch/base/tensor_form.h"
#include "libtorch/base/thread_state.h"
#include "libtorch/memory/managed_memory.h"
#include "libtorch/operators/operator_effects.h"
#include "store/flat.h"
#include "store/offload_memory.h"

namespace reprise {
namespace {

using libtorch::SavedVariableHooks;
using store::FlatForm;
using store::OffloadedMemory;
using store::OffloadLedger;

// A tensor that covers less than this part of its storage is parked alone.
constexpr std::int64_t kWholeFrom = 4;

// Kept as it is.
struct Kept {
  at::Tensor tensor;
};
// A small part of larger memory: a copy of it.
struct Copied {
  FlatForm form;
  at::Tensor flat;
};
// On a storage that was parked.
struct OnStorage {
  explicit OnStorage(std::shared_ptr<OffloadedMemory> memory) : reader(std::move(memory)) {}
  OffloadedMemory::Reader reader;
};
// Parked alone.
struct Part {
  Part(std::shared_ptr<OffloadedMemory> memory, const FlatForm& its_form)
      : reader(std::move(memory)), form(its_form) {}
  OffloadedMemory::Reader reader;
  FlatForm form;
};

class OffloadHooks final : public SavedVariableHooks, public Recycled<OffloadHooks> {
 public:
  explicit OffloadHooks(OffloadLedger& ledger) : ledger_(ledger) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    libtorch::with_leaving_errors([&] { pack(tensor); });
  }
  at::Tensor call_unpack_hook() override {
    return libtorch::with_leaving_errors([&] { return unpack(); });
  }

 private:
  void pack(const at::Tensor& tensor) {
    origin_ = libtorch::WeakNode(tensor);
    version_ = libtorch::SavedVersion(tensor);
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    const std::int64_t min_bytes = ledger_.options().min_bytes.count;
    if (Store::cannot_park(tensor) != nullptr ||
        static_cast<std::int64_t>(tensor.storage().nbytes()) < min_bytes ||
        !ledger_.store().takes(tensor.device()) || libtorch::is_parameter(tensor) ||
        libtorch::is_writing_to(tensor)) {
      place_ = Kept{libtorch::without_history(tensor)};
      return;
    }
    keys_ = tensor.key_set();
    dtype_ = tensor.dtype();
    sizes_ = tensor.sizes();
    strides_ = tensor.strides();
    offset_ = tensor.storage_offset();
    park(tensor, min_bytes);
  }

  at::Tensor unpack() {
    std::optional<c10::AutoGradMode> no_grad;
    if (c10::GradMode::is_enabled()) no_grad.emplace(false);
    at::Tensor tensor = std::visit([this](auto& place) { return restore(place); }, place_);
    version_.check(tensor, counter_, origin_);
    return tensor;
  }

  void park(const at::Tensor& tensor, std::int64_t min_bytes) {
    const FlatForm form(tensor);
    const std::int64_t bytes = form.length() * static_cast<std::int64_t>(dtype_.itemsize());
    if (bytes * kWholeFrom >= static_cast<std::int64_t>(tensor.storage().nbytes())) {
      place_.emplace<OnStorage>(ledger_.park_storage(tensor));
    } else if (auto memory = ledger_.find_storage(tensor)) {
      place_.emplace<OnStorage>(std::move(memory));
    } else if (form.length() > 0 && bytes >= min_bytes) {
      place_.emplace<Part>(ledger_.park_part(tensor, form.flatten(tensor)), form);
    } else if (form.length() > 0) {
      const at::Tensor flat = form.flatten(tensor);
      place_ = Copied{form, libtorch::share_memory(flat, tensor) ? flat.clone() : flat};
    } else {
      place_ = Copied{form, at::Tensor()};
    }
  }

  at::Tensor view(const c10::Storage& storage) const {
    return store::view_of(storage, keys_, dtype_, sizes_, strides_, offset_);
  }

  at::Tensor restore(std::monostate) const { return {}; }
  at::Tensor restore(const Kept& kept) const { return kept.tensor; }
  at::Tensor restore(const Copied& copied) const {
    return copied.flat.defined() ? copied.form.restore(copied.flat) : copied.form.restore_empty();
  }
  at::Tensor restore(OnStorage& place) const {
    const auto storage = place.reader.in_place();
    return view(storage.has_value() ? *storage : place.reader.read().storage());
  }
  at::Tensor restore(Part& part) const {
    const auto storage = part.reader.in_place();
    return storage.has_value() ? view(*storage) : part.form.restore(part.reader.read());
  }

  // Packing follows at once, while the scope is open.
  OffloadLedger& ledger_;
  std::variant<std::monostate, Kept, Copied, OnStorage, Part> place_;
  libtorch::SavedVersion version_;
  libtorch::WeakNode origin_;
  c10::VariableVersion counter_;
  // How the tensor lies on its storage.
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::DimVector sizes_;
  c10::DimVector strides_;
  std::int64_t offset_ = 0;
};

class OffloadProvider final : public libtorch::HookProvider {
 public:
  OffloadProvider(std::shared_ptr<Store> store, const OffloadOptions& options)
      : ledger_(std::make_shared<OffloadLedger>(std::move(store), options)) {}
  std::unique_ptr<SavedVariableHooks> make_hooks() override {
    return std::make_unique<OffloadHooks>(*ledger_);
  }

 private:
  const std::shared_ptr<OffloadLedger> ledger_;
};

void require_not_negative(Bytes bytes, const char* option) {
  if (bytes.count >= 0) return;
  throw UsageError(std::string("OffloadScope: ") + option + " is " + to_string(bytes) +
                   "; it must be zero or more");
}

// The scope need not know what operators write, but asks what they are writing.
struct Unconcerned final : libtorch::EffectObserver {
  bool before_write(const at::Tensor&) override { return false; }
  bool before_draw(const at::Generator&) override { return false; }
};

std::shared_ptr<libtorch::ThreadState> state_with(std::shared_ptr<Store> store,
                                                  const OffloadOptions& options) {
  if (store == nullptr) {
    throw UsageError("OffloadScope: the store is null; pass memory_store() to offload nothing");
  }
  require_not_negative(options.min_bytes, "min_bytes");
  require_not_negative(options.hold, "hold");
  libtorch::ensure_engine_front();
  auto state = libtorch::copy_of_current_state();
  state->set_hooks(std::make_shared<OffloadProvider>(std::move(store), options));
  return state;
}

}  // namespace

class OffloadScope::Impl {
 public:
  Impl(std::shared_ptr<Store> store, const OffloadOptions& options)
      : Impl(state_with(std::move(store), options)) {}

 private:
  explicit Impl(std::shared_ptr<libtorch::ThreadState> state)
      : effects_(*state, std::make_shared<Unconcerned>()), scope_(std::move(state)) {}

  libtorch::EffectScope effects_;
  libtorch::ThreadStateScope scope_;
};

OffloadScope::OffloadScope(std::shared_ptr<Store> store, const OffloadOptions& options)
    : impl_(std::make_unique<Impl>(std::move(store), options)) {}
OffloadScope::OffloadScope(std::shared_ptr<Store> store, Bytes min_bytes)
    : OffloadScope(std::move(store), OffloadOptions{.min_bytes = min_bytes}) {}
OffloadScope::~OffloadScope() = default;

}  // namespace reprise
