#include "store/disk_queue.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <reprise/error.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "libtorch/memory/counting_allocator.h"
#include "libtorch/memory/managed_memory.h"
#include "store/flat.h"

namespace reprise::store {
namespace {

// Takes `item` out of a queue that is short, because what is in it is bounded in bytes.
template <class T>
bool remove(std::deque<T>& queue, const T& item) {
  const auto found = std::find(queue.begin(), queue.end(), item);
  if (found == queue.end()) return false;
  queue.erase(found);
  return true;
}

}  // namespace

struct DiskQueue::Fetch {
  bool ahead = false;  // counted in ahead_bytes_
  bool done = false;
  at::Tensor value;
  std::exception_ptr error;
};

class DiskQueue::Entry {
 public:
  explicit Entry(const at::Tensor& flat)
      : source(flat),
        held(flat),
        dtype(flat.scalar_type()),
        length(flat.numel()),
        value{.offset = 0, .bytes = static_cast<std::int64_t>(flat.nbytes()), .checksum = 0} {}

  enum class State { kQueued, kWriting, kStored, kFailed };

  State state = State::kQueued;
  at::Tensor source;
  // Workers read its bytes.
  libtorch::HeldMemory held;
  const at::ScalarType dtype;
  const std::int64_t length;
  StoredValue value;
  std::exception_ptr error;
  FetchPointer fetch;
  int readers = 0;  // threads that read its part of the file now
  bool dropped = false;

  std::int64_t room() const { return round_up_to_blocks(value.bytes); }
};

DiskQueue::DiskQueue(std::unique_ptr<BlockFile> file, const DiskLimits& limits, Count count)
    : file_(std::move(file)), limits_(limits), count_(std::move(count)) {
  for (int i = 0; i < limits.workers; ++i) buffers_.emplace_back(limits.block);
  try {
    for (BlockBuffer& buffer : buffers_) {
      workers_.emplace_back([this, &buffer] { work(buffer); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

DiskQueue::~DiskQueue() { stop(); }

void DiskQueue::stop() {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void DiskQueue::check_process() const {
  if (!is_another_process()) return;
  throw StoreError("disk store: process " + std::to_string(::getpid()) +
                   " was forked from process " + std::to_string(process_) +
                   ", which has the threads of the store and " + file_->place() +
                   "; make a disk_store() in each process, after the fork");
}

DiskQueue::EntryPointer DiskQueue::put(const at::Tensor& flat) {
  check_process();
  auto entry = std::make_shared<Entry>(flat);
  Lock lock(mutex_);
  throw_failures(lock);
  check_cap(lock, entry->room());
  writes_.push_back(entry);
  entry->value.offset = extents_.take(entry->room());
  add_waiting(entry->value.bytes);
  work_.notify_one();
  moved_.wait(lock, [&] { return waiting_bytes_ <= limits_.in_flight || !failed_.empty(); });
  if (failed_.empty()) return entry;
  try {
    throw_failures(lock);
  } catch (...) {
    lock.unlock();
    drop(entry);
    throw;
  }
  return entry;
}

void DiskQueue::check_cap(Lock& lock, std::int64_t wanted) {
  const auto fits = [&] { return extents_.used() + wanted <= limits_.byte_cap; };
  moved_.wait(lock, [&] { return fits() || leaving_ == 0; });
  if (fits()) return;
  throw StoreError("disk store: parking " + to_string(Bytes(wanted)) + " in " + file_->place() +
                   " would pass the cap of " + to_string(Bytes(limits_.byte_cap)) + ", and " +
                   to_string(Bytes(extents_.used())) +
                   " are in use; raise DiskStoreOptions.byte_cap, or park less");
}

at::Tensor DiskQueue::get(const EntryPointer& entry) {
  check_process();
  Lock lock(mutex_);
  if (entry->source.defined()) return entry->source;
  if (entry->state == Entry::State::kFailed) {
    std::erase(failed_, entry.get());
    std::rethrow_exception(entry->error);
  }
  for (;;) {
    if (entry->fetch == nullptr) {
      // Without the lock: what is short of memory may park other values for it.
      lock.unlock();
      at::Tensor memory = memory_for(*entry);
      lock.lock();
      if (entry->fetch == nullptr) start_fetch(entry, std::move(memory), /*ahead=*/false);
    }
    hurry(entry);
    const FetchPointer fetch = entry->fetch;
    moved_.wait(lock, [&] { return fetch->done; });
    if (entry->fetch == fetch) forget_fetch(*entry);
    if (fetch->error) std::rethrow_exception(fetch->error);
    // Else a hint for which there was no room.
    if (fetch->value.defined()) return fetch->value;
  }
}

bool DiskQueue::prefetch(const EntryPointer& entry) {
  if (is_another_process()) return false;
  const Lock lock(mutex_);
  if (entry->source.defined() || entry->fetch != nullptr) return true;
  if (entry->state == Entry::State::kFailed) return false;
  if (ahead_bytes_ > 0 && ahead_bytes_ + entry->value.bytes > limits_.read_ahead) return false;
  start_fetch(entry, {}, /*ahead=*/true);
  return true;
}

// On the thread that waits for the value: it may hold a lock that an allocation waits for, and is
// the one that an error of the allocation belongs to.
at::Tensor DiskQueue::memory_for(const Entry& entry) {
  return at::detail::empty_cpu({entry.length}, entry.dtype, std::nullopt, std::nullopt,
                               std::nullopt, std::nullopt);
}

// For what is only hinted at, when a worker begins to read it; undefined where a limit leaves no
// room.
at::Tensor DiskQueue::spare_memory_for(const Entry& entry) {
  if (!libtorch::counting_allocator_is_installed()) return memory_for(entry);
  const auto bytes = static_cast<std::size_t>(entry.value.bytes);
  c10::DataPtr memory = libtorch::allocate_if_it_fits(bytes);
  if (!memory) return {};
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  return view_of(c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory),
                              c10::GetAllocator(c10::kCPU), /*resizable=*/true),
                 keys, c10::scalarTypeToTypeMeta(entry.dtype), {entry.length}, {1}, 0);
}

void DiskQueue::start_fetch(const EntryPointer& entry, at::Tensor memory, bool ahead) {
  auto fetch = std::make_shared<Fetch>();
  fetch->value = std::move(memory);
  (ahead ? ahead_ : urgent_).push_back(entry);
  fetch->ahead = ahead;
  entry->fetch = std::move(fetch);
  if (ahead) ahead_bytes_ += entry->value.bytes;
  work_.notify_one();
}

void DiskQueue::forget_fetch(Entry& entry) {
  if (entry.fetch->ahead) ahead_bytes_ -= entry.value.bytes;
  entry.fetch.reset();
}

// Somebody waits now for what was only hinted at.
void DiskQueue::hurry(const EntryPointer& entry) {
  if (remove(ahead_, entry)) urgent_.push_back(entry);
}

void DiskQueue::drop(const EntryPointer& entry) {
  if (is_another_process()) return;
  // Freed after the lock.
  at::Tensor source;
  libtorch::HeldMemory held;
  FetchPointer fetch;
  const Lock lock(mutex_);
  entry->dropped = true;
  std::erase(failed_, entry.get());
  if (entry->state == Entry::State::kQueued) {
    remove(writes_, entry);
    source = std::move(entry->source);
    held = std::move(entry->held);
    add_waiting(-entry->value.bytes);
    moved_.notify_all();
  }
  if (entry->fetch != nullptr) {
    remove(ahead_, entry);
    fetch = entry->fetch;
    forget_fetch(*entry);
  }
  leaving_ += entry->room();
  if (entry->state != Entry::State::kWriting && entry->readers == 0) release(*entry);
}

void DiskQueue::release(Entry& entry) {
  leaving_ -= entry.room();
  extents_.give(entry.value.offset, entry.room());
}

void DiskQueue::flush() {
  check_process();
  Lock lock(mutex_);
  moved_.wait(lock, [&] {
    return writes_.empty() && writing_ == 0 && urgent_.empty() && ahead_.empty() && reading_ == 0;
  });
  throw_failures(lock);
}

void DiskQueue::throw_failures(Lock& lock) {
  if (failed_.empty()) return;
  const std::exception_ptr error = failed_.front()->error;
  moved_.wait(lock, [&] { return writes_.empty() && writing_ == 0; });
  failed_.clear();
  std::rethrow_exception(error);
}

void DiskQueue::add_waiting(std::int64_t bytes) {
  waiting_bytes_ += bytes;
  count_(bytes, 0, 0);
}

void DiskQueue::work(BlockBuffer& buffer) {
  Lock lock(mutex_);
  for (;;) {
    work_.wait(lock,
               [&] { return stop_ || !urgent_.empty() || !ahead_.empty() || !writes_.empty(); });
    if (stop_) return;
    if (urgent_.empty() && ahead_.empty()) {
      write_next(lock, buffer);
    } else {
      read_next(lock, buffer);
    }
    moved_.notify_all();
  }
}

void DiskQueue::write_next(Lock& lock, BlockBuffer& buffer) {
  const EntryPointer entry = std::move(writes_.front());
  writes_.pop_front();
  entry->state = Entry::State::kWriting;
  ++writing_;
  lock.unlock();

  std::exception_ptr error;
  std::uint64_t checksum = 0;
  try {
    checksum =
        write_value(*file_, buffer, static_cast<const std::byte*>(entry->source.const_data_ptr()),
                    entry->value);
  } catch (...) {
    error = std::current_exception();
  }

  lock.lock();
  entry->value.checksum = checksum;
  entry->error = error;
  entry->state = error ? Entry::State::kFailed : Entry::State::kStored;
  if (entry->dropped) {
    release(*entry);
  } else if (error) {
    failed_.push_back(entry.get());
  }
  if (!error) count_(0, entry->value.bytes, 0);
  at::Tensor source = std::move(entry->source);
  libtorch::HeldMemory held = std::move(entry->held);
  // Free before anybody hears of it.
  lock.unlock();
  held.reset();
  source.reset();
  lock.lock();
  --writing_;
  add_waiting(-entry->value.bytes);
}

void DiskQueue::read_next(Lock& lock, BlockBuffer& buffer) {
  auto& queue = urgent_.empty() ? ahead_ : urgent_;
  const EntryPointer entry = std::move(queue.front());
  queue.pop_front();
  const FetchPointer fetch = entry->fetch;
  at::Tensor value = std::move(fetch->value);
  ++entry->readers;
  ++reading_;
  lock.unlock();

  std::exception_ptr error;
  try {
    if (!value.defined()) value = spare_memory_for(*entry);
    if (value.defined()) {
      read_value(*file_, buffer, static_cast<std::byte*>(value.mutable_data_ptr()), entry->value);
    }
  } catch (...) {
    error = std::current_exception();
    value.reset();
  }

  lock.lock();
  --entry->readers;
  if (value.defined()) count_(0, 0, entry->value.bytes);
  if (!error && !value.defined() && entry->fetch == fetch) forget_fetch(*entry);
  if (entry->dropped) {
    if (entry->readers == 0) release(*entry);
    lock.unlock();
    value.reset();
    lock.lock();
  }
  fetch->value = std::move(value);
  fetch->error = error;
  fetch->done = true;
  --reading_;
}

}  // namespace reprise::store
