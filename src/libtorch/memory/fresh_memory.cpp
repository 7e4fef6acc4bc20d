// Each thread has a table from address to the number of the period in which it was last handed out.
// Numbers only grow, so that nothing has to be taken out when memory is freed or a period ends:
// what is in the table from before a period is older than it. Entries older than the outermost open
// period are dropped when the table is full.
//
// Every allocation of the process asks whether a period is open. So that variable lies in the
// thread's static block, where it is read in one instruction; a library that is loaded late finds
// room for its few bytes there, but not for more. The table is made by the first allocation in a
// period.
#include "libtorch/memory/fresh_memory.h"

#include <memory>
#include <vector>

#include "libtorch/memory/counting_allocator.h"
#include "libtorch/memory/managed_memory.h"

namespace reprise::libtorch {
namespace {

class FreshTable {
 public:
  void put(const void* data, std::uint64_t period, std::uint64_t oldest) {
    if (2 * (used_ + 1) > entries_.size()) make_room(oldest);
    put(data, period);
  }

  // 0 if it is not in the table.
  std::uint64_t period_of(const void* data) const {
    const Entry& entry = entries_[find(data)];
    return entry.data == data ? entry.period : 0;
  }

  bool is_large() const { return entries_.size() > kMostKept; }

 private:
  struct Entry {
    const void* data = nullptr;
    std::uint64_t period = 0;
  };
  static constexpr std::size_t kFirst = 64;
  // A larger table is given back when no period is open any more.
  static constexpr std::size_t kMostKept = 4096;

  // Where `data` is, or would be put.
  std::size_t find(const void* data) const {
    // Memory of tensors is aligned to 64 bytes.
    const auto key = reinterpret_cast<std::uintptr_t>(data) >> 6;
    std::size_t i = (key * 0x9E3779B97F4A7C15u) >> 32;
    for (;; ++i) {
      i &= entries_.size() - 1;
      if (entries_[i].data == data || entries_[i].data == nullptr) return i;
    }
  }

  void put(const void* data, std::uint64_t period) {
    Entry& entry = entries_[find(data)];
    if (entry.data == nullptr) ++used_;
    entry = {data, period};
  }

  void make_room(std::uint64_t oldest) {
    std::size_t young = 0;
    for (const Entry& entry : entries_) young += entry.period >= oldest;
    std::size_t size = kFirst;
    while (size < 4 * (young + 1)) size *= 2;
    std::vector<Entry> before(size);
    before.swap(entries_);
    used_ = 0;
    for (const Entry& entry : before) {
      if (entry.period >= oldest) put(entry.data, entry.period);
    }
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kFirst);
  std::size_t used_ = 0;
};

[[gnu::tls_model("initial-exec")]] constinit thread_local std::size_t open_periods = 0;

struct Log {
  std::uint64_t period = 0;
  std::uint64_t outermost = 0;
  // Allocations in periods.
  std::int64_t noted = 0;
  FreshTable* table = nullptr;
};
constinit thread_local Log log;

// Frees the table when the thread ends.
struct TableOwner {
  std::unique_ptr<FreshTable> table;
  ~TableOwner() { log.table = nullptr; }
};
thread_local TableOwner owner;

void note(const void* data) {
  if (log.table == nullptr) {
    owner.table = std::make_unique<FreshTable>();
    log.table = owner.table.get();
  }
  ++log.noted;
  log.table->put(data, log.period, log.outermost);
}

}  // namespace

void note_allocation(const void* data) {
  if (open_periods != 0) note(data);
}

void FreshMemory::adopt(c10::StorageImpl& storage) {
  const void* data = storage._mutable_data_ptr_no_checks().get();
  if (open_periods == 0 || data == nullptr) return;
  note(data);
  --log.noted;
}

FreshMemory::FreshMemory() {
  Log& mine = log;
  ++mine.period;
  if (open_periods++ == 0) mine.outermost = mine.period;
  mark_.log_ = &mine;
  mark_.start_ = mine.period;
  mark_.elsewhere_ = cpu_allocation_count() - mine.noted;
}

FreshMemory::~FreshMemory() {
  if (--open_periods == 0 && log.table != nullptr && log.table->is_large()) {
    log.table = nullptr;
    owner.table.reset();
  }
}

Age FreshMemory::Mark::age_of(c10::StorageImpl& storage) const {
  // Past the checks of access: the memory itself is not touched here.
  const MemoryManager* const manager = ManagedMemory::manager_of(storage);
  const c10::DataPtr& data = manager != nullptr ? ManagedMemory::memory_of(*manager)
                                                : storage._mutable_data_ptr_no_checks();
  if (data.get() == nullptr || storage.nbytes() == 0) return Age::kFresh;
  if (!is_counted_memory(data)) {
    // Older than the library, in a process that loaded it late.
    return is_uncounted_memory(data) && counting_allocator_is_installed() ? Age::kOlder
                                                                          : Age::kUnknown;
  }
  const Log& mine = log;
  if (log_ != &mine) return Age::kUnknown;
  if (mine.table != nullptr && mine.table->period_of(data.get()) >= start_) return Age::kFresh;
  // What another thread was given meanwhile may have come here.
  return cpu_allocation_count() - mine.noted == elsewhere_ ? Age::kOlder : Age::kUnknown;
}

}  // namespace reprise::libtorch
