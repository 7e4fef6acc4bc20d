// Storages whose bytes somebody else may take away and bring back in place, while tensors, modules
// and autograd's graph go on holding them.
//
// A managed storage's data pointer carries its manager as context and a deleter of this file's. So
// the manager of a storage is found without a table, and learns when the storage dies or is given
// other memory. Hollow: the bytes are gone; sizes and strides stay readable, raw access throws.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <utility>

#include "libtorch/memory/memory_limit.h"

namespace reprise::libtorch {

class MemoryManager : private LimitMutex::Last {
 public:
  virtual ~MemoryManager() = default;

  // Somebody reads the bytes past operators: fills the storage if it is hollow, and leaves the
  // bytes where they are until release_hold(). On any thread.
  virtual void hold() = 0;
  virtual void release_hold() noexcept = 0;
  // They are about to be overwritten past operators.
  virtual void before_write() = 0;

  // That the next manager will have, or a higher one.
  static std::uint64_t next_number();

 private:
  friend struct ManagedMemory;
  friend class HeldMemory;
  // The storage is dying, or gets other memory: the manager is no part of it any more. `memory` is
  // what it held, empty if it was hollow. On any thread, under limit_mutex(); must not throw.
  virtual void released(c10::DataPtr memory) noexcept = 0;
  void run_last() noexcept override { released(std::exchange(memory_, {})); }

  // Tells one manager from the next at the same address.
  const std::uint64_t number_ = next_number();
  c10::DataPtr memory_;
  // Of the storage, before it was managed.
  std::uint64_t identity_before_ = 0;
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  // Of the storage, while it is managed.
  WeakStorage storage_ = WeakStorage::reclaim(nullptr);
  // By a reference of this file's own.
  bool is_referenced_ = false;
  // Where storages besides this one may have the memory: what they have in common.
  const void* shared_with_ = nullptr;
};

struct ManagedMemory {
  // Null if the storage is not managed.
  static MemoryManager* manager_of(c10::StorageImpl& storage) {
    // Past the checks: a hollow storage's throw.
    const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    return data.get_deleter() == &release ? static_cast<MemoryManager*>(data.get_context())
                                          : nullptr;
  }

  // The storage has that identity for as long as nobody but its manager gives it other memory, also
  // when it becomes managed meanwhile.
  static std::uint64_t identity_of(const c10::StorageImpl& storage);
  static bool has_identity(const c10::StorageImpl& storage, std::uint64_t identity);

  // All of what follows under limit_mutex(). Another thread that frees the storage meanwhile waits
  // there to tell the manager: until then the manager's part alone is touched. A manager is told
  // when nobody is at work under the lock, also where this file's own reference was the last one.

  // Takes a storage over, with its memory. The manager must live until it is released.
  static void manage(c10::StorageImpl& storage, MemoryManager& manager);
  // Ends that; the storage keeps the memory. False if the storage is dying: the manager will be
  // told. Raw access to what stays hollow will throw `text`, if there is one.
  static bool let_go(c10::StorageImpl& storage, MemoryManager& manager, const char* text = nullptr);

  static bool is_hollow(const MemoryManager& manager) { return manager.memory_.get() == nullptr; }
  // Takes the memory away; raw access will throw `text`.
  static c10::DataPtr hollow(c10::StorageImpl& storage, MemoryManager& manager, const char* text);
  static void fill(c10::StorageImpl& storage, MemoryManager& manager, c10::DataPtr memory);
  // Nobody holds it any more, and its manager has not been told yet. What does not die now may do
  // so a moment later.
  static bool is_dying(const MemoryManager& manager) { return manager.storage_.expired(); }
  // The program has moved its data pointer to another storage: the manager will be told when that
  // one dies.
  static bool is_taken_away(MemoryManager& manager);
  // Keeps a storage from dying while it is touched. The use count is raised for that moment.
  class Reference {
   public:
    explicit Reference(MemoryManager& manager);
    ~Reference();
    Reference(const Reference&) = delete;
    Reference& operator=(const Reference&) = delete;
    // It is dying already.
    bool is_too_late() const { return !storage_; }
    // Unless it is too late.
    c10::StorageImpl& storage() const { return *storage_; }

   private:
    MemoryManager& manager_;
    c10::intrusive_ptr<c10::StorageImpl> storage_;
  };
  static const c10::DataPtr& memory_of(const MemoryManager& manager) { return manager.memory_; }
  // Used for no other manager of the process.
  static std::uint64_t number_of(const MemoryManager& manager) { return manager.number_; }
  // What storages on the same memory have in common; null where no others can be.
  static const void* shared_with(const c10::Storage& storage);

 private:
  static void release(void* context);
};

// Whether both lie on the same memory, as at::Tensor::is_alias_of() tells, which throws where a
// storage is hollow. Reads no bytes.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

// Keeps the bytes of a tensor's storage in place while it lives, managed or not. The manager may be
// gone before it.
class HeldMemory {
 public:
  HeldMemory() = default;
  explicit HeldMemory(const at::Tensor& tensor);
  // `to_write`: the holder changes the bytes, now and not later.
  HeldMemory(c10::Storage storage, bool to_write);
  ~HeldMemory() { reset(); }
  HeldMemory(HeldMemory&& other) noexcept
      : storage_(std::move(other.storage_)),
        dying_(std::move(other.dying_)),
        number_(std::exchange(other.number_, 0)) {}
  HeldMemory& operator=(HeldMemory&& other) noexcept {
    reset();
    storage_ = std::move(other.storage_);
    dying_ = std::move(other.dying_);
    number_ = std::exchange(other.number_, 0);
    return *this;
  }
  void reset() noexcept;
  // From now on the storage may die, and the hold with it: for holders that the storage owns.
  void let_storage_die();

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  c10::Storage storage_;
  WeakStorage dying_ = WeakStorage::reclaim(nullptr);
  // Of the manager that was asked; 0 if there was none.
  std::uint64_t number_ = 0;
};

}  // namespace reprise::libtorch
