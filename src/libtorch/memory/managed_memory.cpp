#include "libtorch/memory/managed_memory.h"

#include <c10/core/RefcountedDeleter.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "libtorch/base/versions.h"
#include "libtorch/memory/memory_limit.h"

namespace reprise::libtorch {
namespace {

const void* shared_by(const c10::DataPtr& memory) {
  return memory.get_deleter() == &c10::refcounted_deleter ? memory.get_context() : nullptr;
}

}  // namespace

std::uint64_t MemoryManager::next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

HeldMemory::HeldMemory(const at::Tensor& tensor)
    : HeldMemory(tensor.defined() && tensor.has_storage() ? tensor.storage() : c10::Storage(),
                 /*to_write=*/false) {}

// Delegates, so that it lets go of what it holds where before_write() throws.
HeldMemory::HeldMemory(c10::Storage storage, bool to_write) : HeldMemory() {
  if (!storage) return;
  // Another thread may be moving the memory, or ending its management.
  const std::lock_guard<LimitMutex> lock(limit_mutex());
  MemoryManager* const manager = ManagedMemory::manager_of(*storage.unsafeGetStorageImpl());
  if (manager == nullptr) return;
  manager->hold();
  storage_ = std::move(storage);
  number_ = manager->number_;
  if (to_write) manager->before_write();
}

void HeldMemory::reset() noexcept {
  if (number_ == 0) return;
  const std::lock_guard<LimitMutex> lock(limit_mutex());
  const c10::Storage storage = storage_ ? std::move(storage_) : c10::Storage(dying_.lock());
  if (storage) {
    MemoryManager* const manager = ManagedMemory::manager_of(*storage.unsafeGetStorageImpl());
    if (manager != nullptr && manager->number_ == number_) manager->release_hold();
  }
  number_ = 0;
  dying_.reset();
}

void HeldMemory::let_storage_die() {
  if (!storage_) return;
  dying_ = storage_.getWeakStorageImpl();
  storage_ = {};
}

void ManagedMemory::release(void* context) {
  auto* manager = static_cast<MemoryManager*>(context);
  const std::lock_guard<LimitMutex> lock(limit_mutex());
  if (manager->is_referenced_) {
    limit_mutex().at_last(*manager);
  } else {
    manager->run_last();
  }
}

ManagedMemory::Reference::Reference(MemoryManager& manager)
    : manager_(manager), storage_(manager.storage_.lock()) {}

ManagedMemory::Reference::~Reference() {
  if (!storage_) return;
  manager_.is_referenced_ = true;
  storage_.reset();
  manager_.is_referenced_ = false;
}

bool ManagedMemory::is_taken_away(MemoryManager& manager) {
  // While a storage dies it counts as one more weak reference.
  if (is_dying(manager)) return manager.storage_.weak_use_count() == 1;
  const Reference reference(manager);
  return !reference.is_too_late() && manager_of(reference.storage()) != &manager;
}

std::uint64_t ManagedMemory::identity_of(const c10::StorageImpl& storage) {
  auto& mutable_storage = const_cast<c10::StorageImpl&>(storage);
  if (const MemoryManager* const manager = manager_of(mutable_storage)) return manager->number_;
  return reinterpret_cast<std::uintptr_t>(mutable_storage._mutable_data_ptr_no_checks().get());
}

bool ManagedMemory::has_identity(const c10::StorageImpl& storage, std::uint64_t identity) {
  const MemoryManager* const manager = manager_of(const_cast<c10::StorageImpl&>(storage));
  return identity == identity_of(storage) ||
         (manager != nullptr && manager->identity_before_ == identity);
}

const void* ManagedMemory::shared_with(const c10::Storage& storage) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (const MemoryManager* const manager = manager_of(impl)) return manager->shared_with_;
  return shared_by(impl._mutable_data_ptr_no_checks());
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.storage().is_alias_of(b.storage());
}

void ManagedMemory::manage(c10::StorageImpl& storage, MemoryManager& manager) {
  manager.identity_before_ = identity_of(storage);
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  manager.shared_with_ = shared_by(data);
  manager.memory_ = std::move(data);
  data = c10::DataPtr(manager.memory_.get(), &manager, &release, storage.device());
  // Also of use by itself: a storage with a weak reference is not destroyed before its manager has
  // been told.
  manager.storage_ =
      MemoryManager::WeakStorage::reclaim(c10::raw::intrusive_ptr::make_weak(&storage));
}

bool ManagedMemory::let_go(c10::StorageImpl& storage, MemoryManager& manager, const char* text) {
  // Nothing is told any more when it is given back.
  const auto reference = manager.storage_.lock();
  if (!reference) return false;
  if (!is_hollow(manager)) {
    allow_reads(storage);
  } else if (text != nullptr && storage.nbytes() != 0) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(text));
  }
  c10::DataPtr memory = std::exchange(manager.memory_, {});
  if (memory.get() == nullptr) memory = c10::DataPtr(nullptr, storage.device());
  c10::DataPtr own = std::exchange(storage._mutable_data_ptr_no_checks(), std::move(memory));
  own.release_context();
  return true;
}

c10::DataPtr ManagedMemory::hollow(c10::StorageImpl& storage, MemoryManager& manager,
                                   const char* text) {
  const Reference reference(manager);
  if (!reference.is_too_late()) {
    c10::DataPtr own = std::exchange(storage._mutable_data_ptr_no_checks(),
                                     c10::DataPtr(nullptr, &manager, &release, storage.device()));
    own.release_context();
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(text));
  }
  // A moved data pointer still shows its address.
  return std::exchange(manager.memory_, {});
}

void ManagedMemory::fill(c10::StorageImpl& storage, MemoryManager& manager, c10::DataPtr memory) {
  manager.memory_ = std::move(memory);
  const Reference reference(manager);
  if (reference.is_too_late()) return;
  allow_reads(storage);
  c10::DataPtr hollow =
      std::exchange(storage._mutable_data_ptr_no_checks(),
                    c10::DataPtr(manager.memory_.get(), &manager, &release, storage.device()));
  hollow.release_context();
}

}  // namespace reprise::libtorch

// In LibTorch's place: its own asks a hollow storage for its data pointer, which throws. Calls go
// to the first definition that the dynamic linker finds, so a program that links reprise before
// LibTorch gets this one from its own questions, too; the library itself always does.
namespace c10 {

bool isSharedStorageAlias(const Storage& storage0, const Storage& storage1) {
  const void* const shared = reprise::libtorch::ManagedMemory::shared_with(storage0);
  return shared != nullptr && shared == reprise::libtorch::ManagedMemory::shared_with(storage1);
}

}  // namespace c10
