#include "store/offload_memory.h"

#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/memory/managed_memory.h"
#include "store/flat.h"

namespace reprise::store {
namespace {

const c10::VariableVersion& counter_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter();
}

// All elements of a storage, as the tensor's type where they come out even: a store that looks at
// values should see them.
at::Tensor whole_storage(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  const auto item = static_cast<std::int64_t>(tensor.dtype().itemsize());
  const bool even = bytes % item == 0;
  const c10::DispatchKeySet keys =
      tensor.key_set() -
      c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return view_of(tensor.storage(), keys,
                 even ? tensor.dtype() : caffe2::TypeMeta::Make<std::uint8_t>(),
                 {even ? bytes / item : bytes}, {1}, 0);
}

}  // namespace

OffloadedMemory::OffloadedMemory(std::shared_ptr<OffloadLedger> ledger, const at::Tensor& tensor,
                                 const at::Tensor& flat)
    : ledger_(std::move(ledger)),
      storage_(tensor.storage().getWeakStorageImpl()),
      identity_(libtorch::ManagedMemory::identity_of(*storage_._unsafe_get_target())),
      storage_bytes_(tensor.storage().nbytes()),
      counter_(counter_of(tensor)),
      version_(counter_.current_version()),
      parked_(ledger_->store().park(flat)) {}

OffloadedMemory::~OffloadedMemory() {
  ledger_->remove(*this);
  if (fetched_.defined()) ledger_->give_back(parked_->bytes().count);
}

bool OffloadedMemory::holds(const at::Tensor& tensor) const {
  const c10::Storage& storage = tensor.storage();
  return storage_._unsafe_get_target() == storage.unsafeGetStorageImpl() &&
         libtorch::ManagedMemory::has_identity(*storage.unsafeGetStorageImpl(), identity_) &&
         storage_bytes_ == storage.nbytes() &&
         libtorch::same_counter(counter_, counter_of(tensor)) &&
         version_ == counter_.current_version();
}

std::optional<c10::Storage> OffloadedMemory::in_place() const {
  auto storage = storage_.lock();
  if (storage == nullptr || !libtorch::ManagedMemory::has_identity(*storage, identity_) ||
      storage->nbytes() != storage_bytes_) {
    return std::nullopt;
  }
  return c10::Storage(std::move(storage));
}

OffloadedMemory::Reader::Reader(std::shared_ptr<OffloadedMemory> memory)
    : memory_(std::move(memory)) {
  const std::lock_guard lock(memory_->mutex_);
  ++memory_->readers_;
  seen_ = memory_->fetches_;
}

OffloadedMemory::Reader::~Reader() {
  at::Tensor freed_last;  // without the lock: whoever made the memory may need others to free it
  const std::lock_guard lock(memory_->mutex_);
  freed_last = memory_->fetched_;
  memory_->count_reader(*this);
  --memory_->readers_;
}

at::Tensor OffloadedMemory::read(Reader& reader) {
  {
    const std::lock_guard lock(mutex_);
    if (fetched_.defined()) {
      const at::Tensor flat = fetched_;
      count_reader(reader);
      return flat;
    }
  }
  const at::Tensor flat = fetch(reader);
  // Now that this one makes room.
  ledger_->prefetch_before(order_);
  return flat;
}

// The store is asked without this memory's lock. It may need another lock, of a language for
// example, while a thread that has that one waits here. Two readers that come at the same time both
// fetch.
at::Tensor OffloadedMemory::fetch(Reader& reader) {
  at::Tensor flat = parked_->load();
  if (flat.storage_offset() != 0) flat = flat.clone();
  const std::lock_guard lock(mutex_);
  if (!fetched_.defined()) {
    ++fetches_;
    unread_ = readers_;
    if (readers_ > 1 && ledger_->reserve(parked_->bytes().count)) {
      fetched_ = flat;
      is_fetched_ = true;
    }
  }
  count_reader(reader);
  return flat;
}

void OffloadedMemory::count_reader(Reader& reader) {
  if (reader.seen_ == fetches_) return;
  reader.seen_ = fetches_;
  if (--unread_ > 0 || !fetched_.defined()) return;
  fetched_.reset();
  is_fetched_ = false;
  ledger_->give_back(parked_->bytes().count);
}

bool OffloadedMemory::prefetch() {
  return is_fetched_ || !storage_.expired() || parked_->prefetch();
}

std::shared_ptr<OffloadedMemory> OffloadLedger::park_storage(const at::Tensor& tensor) {
  if (auto memory = find_storage(tensor)) return memory;
  auto memory = park_part(tensor, whole_storage(tensor));
  const std::lock_guard lock(mutex_);
  by_storage_[tensor.storage().unsafeGetStorageImpl()] = memory->order_;
  return memory;
}

std::shared_ptr<OffloadedMemory> OffloadLedger::find_storage(const at::Tensor& tensor) {
  std::shared_ptr<OffloadedMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_storage_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == by_storage_.end()) return nullptr;
    memory = in_order_.at(found->second).lock();
  }
  return memory != nullptr && memory->holds(tensor) ? memory : nullptr;
}

std::shared_ptr<OffloadedMemory> OffloadLedger::park_part(const at::Tensor& tensor,
                                                          const at::Tensor& flat) {
  auto memory = std::make_shared<OffloadedMemory>(shared_from_this(), tensor, flat);
  const std::lock_guard lock(mutex_);
  memory->order_ = next_++;
  in_order_.emplace(memory->order_, memory);
  return memory;
}

void OffloadLedger::remove(const OffloadedMemory& memory) {
  const std::lock_guard lock(mutex_);
  in_order_.erase(memory.order_);
  const auto found = by_storage_.find(memory.storage_._unsafe_get_target());
  if (found != by_storage_.end() && found->second == memory.order_) by_storage_.erase(found);
}

void OffloadLedger::prefetch_before(std::uint64_t order) {
  for (;;) {
    // Let go outside the lock: it may be the last to know this memory.
    std::shared_ptr<OffloadedMemory> memory;
    {
      const std::lock_guard lock(mutex_);
      auto next = in_order_.lower_bound(order);
      if (next == in_order_.begin()) return;
      --next;
      order = next->first;
      memory = next->second.lock();
    }
    if (memory != nullptr && !memory->prefetch()) return;
  }
}

bool OffloadLedger::reserve(std::int64_t bytes) {
  if (held_bytes_ + bytes > options_.hold.count) return false;
  held_bytes_ += bytes;
  return true;
}

}  // namespace reprise::store
