#include "store/host_store.h"

#include <utility>

#include "store/host_transfers.h"

namespace reprise::store {
namespace {

class OnHost final : public ParkedTensor {
 public:
  OnHost(HostTransfers& transfers, const at::Tensor& flat)
      : transfers_(transfers),
        bytes_(static_cast<std::int64_t>(flat.nbytes())),
        entry_(transfers.put(flat)) {}
  ~OnHost() override { transfers_.drop(entry_); }
  at::Tensor load() override { return transfers_.get(entry_); }
  bool prefetch() override { return transfers_.prefetch(entry_); }
  Bytes bytes() const override { return bytes_; }

 private:
  HostTransfers& transfers_;
  const Bytes bytes_;
  const HostTransfers::EntryPointer entry_;
};

class HostStore final : public Store {
 public:
  HostStore(const HostStoreOptions& options, std::unique_ptr<libtorch::TransferEngine> engine)
      : transfers_(std::move(engine),
                   {.in_flight = options.in_flight.count, .read_ahead = options.read_ahead.count},
                   [this](std::int64_t waiting, std::int64_t written, std::int64_t read) {
                     count_waiting(Bytes(waiting));
                     count_written(Bytes(written));
                     count_read(Bytes(read));
                   }) {}

  bool exact() const override { return true; }
  bool takes(c10::Device device) const override { return transfers_.engine().serves(device); }
  std::string name() const override { return "host store"; }
  void flush() override { transfers_.flush(); }

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override {
    return std::make_unique<OnHost>(transfers_, flat);
  }

 private:
  HostTransfers transfers_;
};

void require_not_negative(Bytes bytes, const char* option) {
  if (bytes.count >= 0) return;
  throw UsageError(std::string("HostStoreOptions.") + option + " is " + to_string(bytes) +
                   "; it must be zero or more");
}

}  // namespace

std::shared_ptr<Store> make_host_store(const HostStoreOptions& options,
                                       std::unique_ptr<libtorch::TransferEngine> engine) {
  require_not_negative(options.in_flight, "in_flight");
  require_not_negative(options.read_ahead, "read_ahead");
  return std::make_shared<HostStore>(options, std::move(engine));
}

}  // namespace reprise::store

namespace reprise {

std::shared_ptr<Store> host_store(const HostStoreOptions& options) {
  auto engine = libtorch::accelerator_engine();
  if (engine == nullptr) {
    throw UsageError(
        "host_store(): this process has no accelerator whose tensors it could keep in host memory; "
        "use disk_store() to move tensors out of host memory");
  }
  return store::make_host_store(options, std::move(engine));
}

}  // namespace reprise
