#include "libtorch/memory/watched_storage.h"

#include <c10/core/Device.h>

namespace reprise::libtorch {

namespace {

struct Watch {
  std::weak_ptr<StorageWatcher> watcher;
  const StorageWatcher* address;
  std::int64_t number;
};

void tell(void* context) {
  const std::unique_ptr<Watch> watch(static_cast<Watch*>(context));
  if (const auto watcher = watch->watcher.lock()) watcher->died(watch->number);
}

}  // namespace

void watch(c10::StorageImpl& storage, const std::shared_ptr<StorageWatcher>& watcher,
           std::int64_t number) {
  auto context = std::make_unique<Watch>(Watch{watcher, watcher.get(), number});
  storage.set_data_ptr_noswap(
      c10::DataPtr(nullptr, context.release(), &tell, c10::Device(c10::kMeta)));
}

std::int64_t watched_number(const c10::StorageImpl& storage, const StorageWatcher& watcher) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() != &tell) return -1;
  const auto* const watch = static_cast<const Watch*>(data.get_context());
  // One that is gone may have had the same address.
  return watch->address == &watcher && !watch->watcher.expired() ? watch->number : -1;
}

}  // namespace reprise::libtorch
