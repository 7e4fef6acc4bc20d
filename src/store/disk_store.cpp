#include "store/disk_store.h"

#include <limits>
#include <sstream>
#include <utility>

#include "store/disk_queue.h"

namespace reprise::store {
namespace {

class OnDisk final : public ParkedTensor {
 public:
  OnDisk(DiskQueue& queue, const at::Tensor& flat)
      : queue_(queue), bytes_(static_cast<std::int64_t>(flat.nbytes())), entry_(queue.put(flat)) {}
  ~OnDisk() override { queue_.drop(entry_); }
  at::Tensor load() override { return queue_.get(entry_); }
  bool prefetch() override { return queue_.prefetch(entry_); }
  Bytes bytes() const override { return bytes_; }

 private:
  DiskQueue& queue_;
  const Bytes bytes_;
  const DiskQueue::EntryPointer entry_;
};

class DiskStore final : public Store {
 public:
  DiskStore(const DiskStoreOptions& options, std::unique_ptr<BlockFile> file)
      : folder_(options.folder),
        queue_(std::make_unique<DiskQueue>(
            std::move(file),
            DiskLimits{.byte_cap = options.byte_cap.value_or(Bytes(kAll)).count,
                       .in_flight = options.in_flight.count,
                       .read_ahead = options.read_ahead.count,
                       .block = options.block.count,
                       .workers = options.workers},
            [this](std::int64_t waiting, std::int64_t written, std::int64_t read) {
              count_waiting(Bytes(waiting));
              count_written(Bytes(written));
              count_read(Bytes(read));
            })) {}
  // A queue of the process that this one was forked from is left as it is.
  ~DiskStore() override {
    if (queue_->is_another_process()) static_cast<void>(queue_.release());
  }

  bool exact() const override { return true; }
  bool takes(c10::Device device) const override { return device.is_cpu(); }
  std::string name() const override { return "disk store in " + folder_; }
  void flush() override { queue_->flush(); }

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override {
    return std::make_unique<OnDisk>(*queue_, flat);
  }

 private:
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max() / 2;

  const std::string folder_;
  std::unique_ptr<DiskQueue> queue_;
};

void require(bool holds, const char* option, const std::string& value, const char* bound) {
  if (holds) return;
  throw UsageError(std::string("DiskStoreOptions.") + option + " is " + value + "; it must be " +
                   bound);
}

void check(const DiskStoreOptions& options) {
  require(!options.folder.empty(), "folder", "empty", "a folder that exists");
  if (options.byte_cap.has_value()) {
    require(options.byte_cap->count > 0, "byte_cap", to_string(*options.byte_cap), "above zero");
  }
  require(options.workers >= 1 && options.workers <= 64, "workers", std::to_string(options.workers),
          "from 1 to 64");
  require(options.in_flight.count >= 0, "in_flight", to_string(options.in_flight), "zero or more");
  require(options.read_ahead.count >= 0, "read_ahead", to_string(options.read_ahead),
          "zero or more");
  require(options.block.count > 0 && options.block.count % kBlockAlignment == 0 &&
              options.block <= GiB(1),
          "block", std::to_string(options.block.count) + " bytes",
          "a multiple of 4096 bytes, and at most 1 GiB");
}

}  // namespace

std::shared_ptr<Store> make_disk_store(const DiskStoreOptions& options,
                                       std::unique_ptr<BlockFile> file) {
  return std::make_shared<DiskStore>(options, std::move(file));
}

}  // namespace reprise::store

namespace reprise {

std::shared_ptr<Store> disk_store(const DiskStoreOptions& options) {
  store::check(options);
  return store::make_disk_store(options, store::open_block_file(options.folder));
}

}  // namespace reprise
