#include "libtorch/memory/outside_writer.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace reprise::libtorch {
namespace {

struct Writers {
  std::mutex mutex;
  std::unordered_multiset<const c10::StorageImpl*> storages;
  std::atomic<std::size_t> count{0};  // of them, to ask without the lock
};

Writers& writers() {
  static auto* all = new Writers;
  // A child that is forked while another thread asks must be able to ask as well.
  [[maybe_unused]] static const int once = pthread_atfork(
      [] { all->mutex.lock(); }, [] { all->mutex.unlock(); }, [] { all->mutex.unlock(); });
  return *all;
}

}  // namespace

OutsideWriter::OutsideWriter(c10::Storage storage) : storage_(std::move(storage)) {
  if (!storage_) return;
  const std::lock_guard<std::mutex> lock(writers().mutex);
  writers().storages.insert(storage_.unsafeGetStorageImpl());
  writers().count = writers().storages.size();
}

OutsideWriter::~OutsideWriter() {
  if (!storage_) return;
  const std::lock_guard<std::mutex> lock(writers().mutex);
  writers().storages.extract(storage_.unsafeGetStorageImpl());
  writers().count = writers().storages.size();
}

bool OutsideWriter::is_on(const c10::StorageImpl& storage) {
  if (writers().count == 0) return false;
  const std::lock_guard<std::mutex> lock(writers().mutex);
  return writers().storages.contains(&storage);
}

}  // namespace reprise::libtorch
