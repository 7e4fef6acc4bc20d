// Being told when a storage without memory dies. The meta device's data pointers point nowhere, so
// their context is free to say who wants to know.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>

namespace reprise::libtorch {

class StorageWatcher {
 public:
  virtual ~StorageWatcher() = default;
  // The storage of that number is gone. On any thread; must not throw.
  virtual void died(std::int64_t number) noexcept = 0;
};

// `storage` must be one of the meta device that nobody watches. It does not keep the watcher alive.
void watch(c10::StorageImpl& storage, const std::shared_ptr<StorageWatcher>& watcher,
           std::int64_t number);
// The number under which that watcher watches the storage; -1 if it does not.
std::int64_t watched_number(const c10::StorageImpl& storage, const StorageWatcher& watcher);

}  // namespace reprise::libtorch
