#include "store/host_transfers.h"

#include <reprise/error.h>

#include <exception>
#include <string>
#include <utility>

namespace reprise::store {
namespace {

[[noreturn]] void fail(const char* done, std::int64_t bytes, c10::Device device,
                       const std::exception& error) {
  throw StoreError("host store: " + std::string(done) + " " + to_string(Bytes(bytes)) +
                   " between " + device.str() + " and host memory failed: " + error.what());
}

}  // namespace

class HostTransfers::Entry {
 public:
  explicit Entry(const at::Tensor& flat)
      : source(flat),
        dtype(flat.scalar_type()),
        device(flat.device()),
        length(flat.numel()),
        bytes(static_cast<std::int64_t>(flat.nbytes())) {}

  at::Tensor source;  // until the copy out has ended
  at::Tensor host;
  Event computed;  // on the stream that parked it
  Event written;
  std::shared_ptr<Fetch> fetch;
  const at::ScalarType dtype;
  const c10::Device device;
  const std::int64_t length;
  const std::int64_t bytes;
};

struct HostTransfers::Copy {
  at::Tensor host;
  c10::Device device;
  Event ended;
  EntryPointer out;  // whose source may go then; null for a copy back
};

// A value on its way back, or there and not asked for yet.
struct HostTransfers::Fetch {
  at::Tensor value;
  Event ended;
  bool ahead;
};

HostTransfers::HostTransfers(std::unique_ptr<libtorch::TransferEngine> engine,
                             const HostLimits& limits, Count count)
    : engine_(std::move(engine)), limits_(limits), count_(std::move(count)) {}

HostTransfers::~HostTransfers() {
  Lock lock(mutex_);
  while (!copies_.empty()) {
    try {
      finish_first(lock);
    } catch (const std::exception&) {
      // Nobody is left to whom the value matters.
    }
  }
}

HostTransfers::EntryPointer HostTransfers::put(const at::Tensor& flat) {
  const c10::Stream current = engine_->current(flat.device());
  auto entry = std::make_shared<Entry>(flat);
  Lock lock(mutex_);
  settle(lock);
  try {
    entry->host = engine_->allocate_host(entry->dtype, entry->length);
    const c10::Stream side = engine_->side(entry->device, Direction::kToHost);
    entry->computed = engine_->record(current);
    entry->written = start(entry->host, flat, side, entry->computed.get());
  } catch (const BudgetError&) {
    throw;
  } catch (const std::exception& error) {
    fail("moving", entry->bytes, entry->device, error);
  }
  copies_.push_back(
      std::make_shared<Copy>(Copy{entry->host, entry->device, entry->written, entry}));
  waiting_bytes_ += entry->bytes;
  count_(entry->bytes, entry->bytes, 0);
  settle(lock, limits_.in_flight);
  return entry;
}

HostTransfers::Event HostTransfers::start(const at::Tensor& to, const at::Tensor& from,
                                          c10::Stream side, libtorch::DeviceEvent* before) {
  if (before != nullptr) before->hold_back(side);
  try {
    engine_->copy(to, from, side);
    return engine_->record(side);
  } catch (...) {
    // The copy may have begun, and its memory is about to go.
    try {
      engine_->drain(side);
    } catch (const std::exception&) {
      // The first error is the one to tell.
    }
    throw;
  }
}

at::Tensor HostTransfers::get(const EntryPointer& entry) {
  const c10::Stream current = engine_->current(entry->device);
  Lock lock(mutex_);
  settle(lock);
  try {
    if (entry->source.defined()) {
      entry->computed->hold_back(current);
      engine_->lend(entry->source, current);
      return entry->source;
    }
    if (entry->fetch == nullptr) start_fetch(*entry, /*ahead=*/false);
    const std::shared_ptr<Fetch> fetch = entry->fetch;
    fetch->ended->hold_back(current);
    engine_->lend(fetch->value, current);
    forget_fetch(*entry);
    return fetch->value;
  } catch (const BudgetError&) {
    throw;
  } catch (const std::exception& error) {
    fail("bringing back", entry->bytes, entry->device, error);
  }
}

bool HostTransfers::prefetch(const EntryPointer& entry) {
  const Lock lock(mutex_);
  if (entry->source.defined() || entry->fetch != nullptr) return true;
  if (ahead_bytes_ > 0 && ahead_bytes_ + entry->bytes > limits_.read_ahead) return false;
  try {
    start_fetch(*entry, /*ahead=*/true);
  } catch (const std::exception&) {
    // A hint: load() will try again, and tell.
    return false;
  }
  return true;
}

void HostTransfers::start_fetch(Entry& entry, bool ahead) {
  const c10::Stream side = engine_->side(entry.device, Direction::kToDevice);
  at::Tensor value = engine_->allocate_device(entry.dtype, entry.length, side);
  Event ended = start(value, entry.host, side, entry.written.get());
  copies_.push_back(std::make_shared<Copy>(Copy{entry.host, entry.device, ended, nullptr}));
  entry.fetch = std::make_shared<Fetch>(Fetch{std::move(value), std::move(ended), ahead});
  if (ahead) ahead_bytes_ += entry.bytes;
  count_(0, 0, entry.bytes);
}

void HostTransfers::forget_fetch(Entry& entry) {
  if (entry.fetch->ahead) ahead_bytes_ -= entry.bytes;
  entry.fetch.reset();
}

void HostTransfers::drop(const EntryPointer& entry) {
  Lock lock(mutex_);
  // The value came from the side stream's memory, and only that stream has touched it.
  if (entry->fetch != nullptr) forget_fetch(*entry);
}

void HostTransfers::flush() {
  Lock lock(mutex_);
  while (!copies_.empty()) finish_first(lock);
}

void HostTransfers::settle(Lock& lock) {
  const auto ended = [](libtorch::DeviceEvent& event) {
    try {
      return event.reached();
    } catch (const std::exception&) {
      return true;  // it is told when it is waited for
    }
  };
  while (!copies_.empty() && ended(*copies_.front()->ended)) finish_first(lock);
}

void HostTransfers::settle(Lock& lock, std::int64_t most) {
  while (!copies_.empty() && waiting_bytes_ > most) finish_first(lock);
}

void HostTransfers::finish_first(Lock& lock) {
  const std::shared_ptr<Copy> copy = std::move(copies_.front());
  copies_.pop_front();
  const EntryPointer out = copy->out;
  const auto stop_waiting = [&] {
    lock.lock();
    if (out == nullptr) return;
    waiting_bytes_ -= out->bytes;
    count_(-out->bytes, 0, 0);
  };
  lock.unlock();
  try {
    copy->ended->wait();
  } catch (const std::exception& error) {
    // What did not arrive keeps its source.
    stop_waiting();
    const auto bytes = static_cast<std::int64_t>(copy->host.nbytes());
    fail("moving", bytes, copy->device, error);
  }
  stop_waiting();
  if (out == nullptr) return;
  at::Tensor source = std::move(out->source);
  // A storage of a budget's step dies under the budget's lock.
  lock.unlock();
  source.reset();
  lock.lock();
}

}  // namespace reprise::store
