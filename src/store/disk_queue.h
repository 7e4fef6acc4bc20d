// The working part of a disk store: values on their way to a file and back, moved by threads of its
// own.
//
// Invariants, all under one lock that is never held while bytes move or memory is freed:
// - An entry's memory (`source`) is there until its write has ended; then the file has the value,
//   or `error` says why not. An entry is in `writes_` exactly while it is kQueued.
// - An entry owns its part of the file from put() until it has been dropped *and* no thread reads
//   or writes it.
// - A Fetch is one reading of an entry for all who ask meanwhile. The entry refers to it until the
//   first of them has got the value; the next to ask starts another one.
// - Reads go before writes, and those that somebody waits for before those that were only hinted
//   at.
// - What is only hinted at takes no room that has to be made: its fetch is given up instead.
//
// A process that was forked from the queue's own has neither its threads nor a lock that it could
// take, and shares the file: there, everything but drop() throws StoreError, and the queue must
// never be destroyed.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/block_file.h"
#include "store/block_transfer.h"
#include "store/extents.h"

namespace reprise::store {

struct DiskLimits {
  std::int64_t byte_cap;    // parts of the file in use
  std::int64_t in_flight;   // bytes that wait to be written
  std::int64_t read_ahead;  // bytes fetched on a hint and not asked for yet
  std::int64_t block;
  int workers;
};

class DiskQueue {
 public:
  class Entry;
  using EntryPointer = std::shared_ptr<Entry>;
  // What changed: bytes waiting (either sign), written and read.
  using Count = std::function<void(std::int64_t waiting, std::int64_t written, std::int64_t read)>;

  DiskQueue(std::unique_ptr<BlockFile> file, const DiskLimits& limits, Count count);
  // Every entry has been dropped.
  ~DiskQueue();
  bool is_another_process() const { return ::getpid() != process_; }

  EntryPointer put(const at::Tensor& flat);
  at::Tensor get(const EntryPointer& entry);
  bool prefetch(const EntryPointer& entry);
  void drop(const EntryPointer& entry);
  void flush();

 private:
  struct Fetch;
  using FetchPointer = std::shared_ptr<Fetch>;
  using Lock = std::unique_lock<std::mutex>;

  void stop();
  void work(BlockBuffer& buffer);
  void write_next(Lock& lock, BlockBuffer& buffer);
  void read_next(Lock& lock, BlockBuffer& buffer);
  static at::Tensor memory_for(const Entry& entry);
  static at::Tensor spare_memory_for(const Entry& entry);
  void check_process() const;
  void start_fetch(const EntryPointer& entry, at::Tensor memory, bool ahead);
  void forget_fetch(Entry& entry);
  void hurry(const EntryPointer& entry);
  void release(Entry& entry);
  void add_waiting(std::int64_t bytes);
  // Throws what has failed and has not been told yet, after all that waits has been tried: it is
  // told once.
  void throw_failures(Lock& lock);
  // Waits for room that is about to be given back, before it says that there is none.
  void check_cap(Lock& lock, std::int64_t wanted);

  const pid_t process_ = ::getpid();
  const std::unique_ptr<BlockFile> file_;
  const DiskLimits limits_;
  const Count count_;

  std::mutex mutex_;
  std::condition_variable work_;   // there may be something to do
  std::condition_variable moved_;  // something was written or read
  std::deque<EntryPointer> writes_;
  std::deque<EntryPointer> urgent_;  // reads that somebody waits for
  std::deque<EntryPointer> ahead_;   // reads that may be asked for soon
  std::vector<Entry*> failed_;       // not dropped and not told yet
  Extents extents_;
  std::int64_t waiting_bytes_ = 0;
  std::int64_t ahead_bytes_ = 0;
  std::int64_t leaving_ = 0;  // parts of the file that were dropped and are still read or written
  int writing_ = 0;           // threads that do
  int reading_ = 0;
  bool stop_ = false;

  std::vector<BlockBuffer> buffers_;
  std::vector<std::thread> workers_;
};

}  // namespace reprise::store
