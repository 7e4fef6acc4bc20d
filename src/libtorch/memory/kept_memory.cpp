// Version counters have no name to compare them by: the private member is named through an explicit
// instantiation, where the language lifts access checks. A LibTorch that renames it does not
// compile here, rather than misbehave.
#include "libtorch/memory/kept_memory.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>

#include "libtorch/memory/managed_memory.h"

namespace reprise::libtorch {
namespace {

using c10::DispatchKeySet;
using c10::StorageImpl;
using c10::VariableVersion;

const void* identity_of(const VariableVersion& counter);

template <auto kMember>
struct RevealCounter {
  friend const void* identity_of(const VariableVersion& counter) {
    return (counter.*kMember).get();
  }
};
template struct RevealCounter<&VariableVersion::version_counter_>;

// For operators of our own: nobody who watches operators sees them, and no mode changes them.
class Unwatched {
 public:
  Unwatched()
      : below_(DispatchKeySet(DispatchKeySet::FULL) -
               DispatchKeySet(DispatchKeySet::FULL_AFTER, c10::DispatchKey::Python)),
        no_grad_(false) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard below_;
  c10::AutoGradMode no_grad_;
  at::DisableRecordFunctionGuard unrecorded_;
};

// What a tensor covers of its storage, in bytes.
std::pair<std::size_t, std::size_t> extent_of(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const std::size_t all = tensor.storage().nbytes();
  if (tensor.is_nested() || impl.layout() != at::kStrided) return {0, all};
  if (impl.numel() == 0) return {0, 0};
  std::size_t last = static_cast<std::size_t>(impl.storage_offset());
  const std::size_t first = last;
  for (std::size_t i = 0; i < impl.sizes().size(); ++i) {
    last += static_cast<std::size_t>((impl.sizes()[i] - 1) * impl.strides()[i]);
  }
  return {std::min(first * impl.itemsize(), all), std::min((last + 1) * impl.itemsize(), all)};
}

bool is_on_host(const StorageImpl& storage) { return storage.device_type() == c10::kCPU; }

// Bytes [begin, end) of a device's storage as a tensor.
at::Tensor bytes_of(StorageImpl& storage, std::size_t begin, std::size_t end) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()));
  return bytes.set_(c10::Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(&storage)),
                    static_cast<std::int64_t>(begin), {static_cast<std::int64_t>(end - begin)},
                    {1});
}

}  // namespace

void KeptMemory::Storage::keep_range(StorageImpl& alive, std::size_t begin, std::size_t end) {
  // Goes through the gaps that are left between the ranges that are kept.
  for (std::size_t i = 0; begin < end; ++i) {
    const bool last = i == ranges.size();
    if (!last && ranges[i].end <= begin) continue;
    const std::size_t gap_end = last ? end : std::min(end, ranges[i].begin);
    if (begin < gap_end) {
      Range range{begin, gap_end, {}, {}};
      if (is_on_host(alive)) {
        const HeldMemory held(c10::Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(&alive)),
                              /*to_write=*/false);
        range.bytes = c10::GetAllocator(c10::kCPU)->allocate(gap_end - begin);
        std::memcpy(range.bytes.get(), static_cast<const char*>(alive.data()) + begin,
                    gap_end - begin);
      } else {
        const Unwatched unwatched;
        range.on_device = bytes_of(alive, begin, gap_end).clone();
      }
      ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(i), std::move(range));
    }
    begin = std::max(begin, last ? end : ranges[i].end);
  }
}

void KeptMemory::Storage::keep_version(const VariableVersion& counter) {
  // Tensors that were made in inference mode count nothing.
  if (!counter.enabled()) return;
  const auto is_same = [&](const Version& kept) {
    return identity_of(kept.counter) == identity_of(counter);
  };
  if (std::any_of(versions.begin(), versions.end(), is_same)) return;
  versions.push_back({counter, counter.current_version()});
}

KeptMemory::Storage* KeptMemory::find(const StorageImpl& storage) {
  for (Storage& entry : storages_) {
    if (entry.storage._unsafe_get_target() == &storage) return &entry;
  }
  return nullptr;
}

KeptMemory::Storage& KeptMemory::entry_of(StorageImpl& storage, std::size_t when) {
  if (Storage* known = find(storage)) return *known;
  Storage entry{
      c10::weak_intrusive_ptr<StorageImpl>(c10::intrusive_ptr<StorageImpl>::reclaim_copy(&storage)),
      {},
      {},
      when};
  return storages_.emplace_back(std::move(entry));
}

void KeptMemory::keep(const at::Tensor& tensor, std::size_t when) {
  StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  Storage& entry = entry_of(storage, when);
  const auto [begin, end] = extent_of(tensor);
  entry.keep_range(storage, begin, end);
  entry.keep_version(tensor.unsafeGetTensorImpl()->version_counter());
}

void KeptMemory::keep_version(const at::Tensor& tensor) {
  entry_of(*tensor.storage().unsafeGetStorageImpl(), kNever)
      .keep_version(tensor.unsafeGetTensorImpl()->version_counter());
}

void KeptMemory::keep_same(const KeptMemory& other) {
  for (const Storage& model : other.storages_) {
    const c10::intrusive_ptr<StorageImpl> alive = model.storage.lock();
    if (!alive) continue;
    Storage& entry = entry_of(*alive, model.when);
    for (const Range& range : model.ranges) {
      entry.keep_range(*alive, range.begin, std::min(range.end, alive->nbytes()));
    }
    for (const Version& version : model.versions) entry.keep_version(version.counter);
  }
}

void KeptMemory::put_back() const {
  for (const Storage& entry : storages_) {
    const c10::intrusive_ptr<StorageImpl> alive = entry.storage.lock();
    if (!alive) continue;
    const HeldMemory held(c10::Storage(alive), /*to_write=*/!entry.ranges.empty());
    for (const Range& range : entry.ranges) {
      const std::size_t end = std::min(range.end, alive->nbytes());
      if (range.begin >= end) continue;
      if (is_on_host(*alive)) {
        std::memcpy(static_cast<char*>(alive->mutable_data()) + range.begin, range.bytes.get(),
                    end - range.begin);
      } else {
        const Unwatched unwatched;
        const auto count = static_cast<std::int64_t>(end - range.begin);
        bytes_of(*alive, range.begin, end).copy_(range.on_device.narrow(0, 0, count));
      }
    }
    for (const Version& version : entry.versions) {
      VariableVersion(version.counter).set_version(version.version);
    }
  }
}

void KeptMemory::drop_dead() {
  std::erase_if(storages_, [](const Storage& entry) { return entry.storage.expired(); });
}

bool KeptMemory::touch(const StorageImpl& storage) {
  Storage* entry = find(storage);
  if (entry == nullptr) return false;
  entry->touched = true;
  return true;
}

bool KeptMemory::drop_untouched(const KeptMemory& again, std::size_t reached) {
  const auto was_skipped = [&](const Storage& entry) {
    return std::any_of(again.storages_.begin(), again.storages_.end(), [&](const Storage& other) {
      return other.storage._unsafe_get_target() == entry.storage._unsafe_get_target() &&
             !other.touched && other.when < reached;
    });
  };
  return std::erase_if(storages_, was_skipped) != 0;
}

at::Tensor with_own_memory(const at::Tensor& tensor) {
  const c10::TensorImpl& original = *tensor.unsafeGetTensorImpl();
  const auto [begin, end] = extent_of(tensor);
  const HeldMemory held(tensor);
  const Unwatched unwatched;
  const at::Tensor bytes = bytes_of(*tensor.storage().unsafeGetStorageImpl(), begin, end).clone();
  auto copy = original.shallow_copy_and_detach(VariableVersion(/*version=*/0),
                                               /*allow_tensor_metadata_change=*/true);
  copy->set_storage_keep_dtype(bytes.storage());
  copy->set_storage_offset(original.storage_offset() -
                           static_cast<std::int64_t>(begin / original.itemsize()));
  return at::Tensor(std::move(copy));
}

}  // namespace reprise::libtorch
