#include "libtorch/memory/outside_writer.h"

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
