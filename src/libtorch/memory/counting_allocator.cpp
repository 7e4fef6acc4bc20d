// How counting stays exact without a lock.
//
// `live` is changed by one atomic addition, which also tells the allocating thread the level that
// it reached; the thread then raises `mark` to that level. A restart exchanges the mark for zero,
// which hands every earlier raise to the caller, and then raises the new mark to the live level, so
// that bytes which were added before the exchange and are still there are seen. Hence no level is
// ever lost. The converse error is possible only for an allocation that is under way on another
// thread during a restart: the level that it reached just before may count for the period that
// begins just then.
//
// Why the new mark misses nothing: either a thread's raise comes after the exchange, or its
// addition came before the exchange in the one order of sequentially consistent operations, and the
// load of `live` that follows the exchange sees it. (On x86 that order costs nothing over a relaxed
// one.)
#include "libtorch/memory/counting_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <malloc.h>
#include <pthread.h>
#include <reprise/error.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <vector>

#include "libtorch/base/leaving_errors.h"
#include "libtorch/memory/caught_refusal.h"
#include "libtorch/memory/freed_blocks.h"
#include "libtorch/memory/fresh_memory.h"
#include "libtorch/memory/large_memory.h"
#include "libtorch/memory/limited_work.h"
#include "libtorch/memory/memory_limit.h"

namespace reprise::libtorch {

namespace {

struct Level {
  std::atomic<std::int64_t> live{0};
  std::atomic<std::int64_t> mark{0};

  void raise_mark(std::int64_t level) {
    std::int64_t before = mark.load();
    while (level > before && !mark.compare_exchange_weak(before, level)) {
    }
  }
  void add(std::int64_t size) { raise_mark(live.fetch_add(size) + size); }
};

// On one cache line, away from other data: every allocation of every thread writes here. Destroyed
// never, since tensors in static variables are freed at the very end.
struct alignas(64) Counters : Level {
  std::atomic<std::int64_t> allocations{0};
};
constinit Counters counters;
constinit Level others;
constinit Level past_operators;

std::int64_t size_of(void* data) { return static_cast<std::int64_t>(malloc_usable_size(data)); }

void release(void* data) {
  if (data == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  const std::int64_t size = size_of(data);
  counters.live.fetch_sub(size);
  if (FreedBlocks::is_wanted()) return FreedBlocks::give(data, static_cast<std::size_t>(size));
  c10::free_cpu(data);
}

// Deleters of their own tell such memory from all other.
void release_of_others(void* data) {
  if (data != nullptr) others.live.fetch_sub(size_of(data));
  release(data);
}
void release_past_operators(void* data) {
  if (data != nullptr) past_operators.live.fetch_sub(size_of(data));
  release(data);
}

// In the order in which they began; read and changed under the lock.
std::vector<LimitKeeper*>& keepers() {
  static auto* list = new std::vector<LimitKeeper*>;
  return *list;
}
// The lowest limit of all; changed under the lock.
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
constinit std::atomic<std::int64_t> lowest_limit{kNoLimit};
bool is_limited() { return lowest_limit.load(std::memory_order_relaxed) != kNoLimit; }

// How many of this thread's allocations are asking: what keepers allocate meanwhile is their own.
thread_local int asking = 0;

// Asks all keepers. The lowest limit of those that made room.
std::int64_t make_room(std::int64_t size) {
  ++asking;
  const auto ended = c10::make_scope_exit([] { --asking; });
  std::int64_t lowest = kNoLimit;
  for (LimitKeeper* keeper : keepers()) {
    if (keeper->make_room(size) == LimitKeeper::Room::kMade) {
      lowest = std::min(lowest, keeper->bound());
    }
  }
  return lowest;
}

class AllocationLock {
 public:
  AllocationLock() { limit_mutex().lock_to_allocate(); }
  ~AllocationLock() { limit_mutex().unlock(); }
  AllocationLock(const AllocationLock&) = delete;
  AllocationLock& operator=(const AllocationLock&) = delete;
};

// Before malloc is asked, so that it can hand out what is freed. What malloc really hands out may
// be some bytes more.
void ask_for(std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  if (counters.live.load() <= lowest_limit.load() - size) return;
  const AllocationLock lock;
  make_room(size);
}

bool give_up(std::int64_t bytes) {
  {
    const AllocationLock lock;
    ++asking;
    const auto ended = c10::make_scope_exit([] { --asking; });
    const auto frees = [bytes](LimitKeeper* keeper) { return keeper->give_up(bytes); };
    if (!std::ranges::any_of(keepers(), frees)) return false;
  }
  // To the system, which may have nothing else for an allocation that malloc maps.
  FreedBlocks::free_all();
  malloc_trim(0);
  return true;
}

// What is freed may lie in pieces: twice as much goes with each try.
void* allocate_or_give_up(std::size_t bytes) {
  if (void* const data = FreedBlocks::take(bytes)) return data;
  for (auto more = static_cast<std::int64_t>(bytes);; more = 2 * std::min(more, kNoLimit / 2)) {
    try {
      return c10::alloc_cpu(bytes);
    } catch (const c10::Error&) {
      if (!FreedBlocks::free_all() && !give_up(more)) throw;
    }
  }
}

// In one step, so that no two allocations take the same room.
bool count_if_it_fits(std::int64_t size, std::int64_t limit) {
  std::int64_t live = counters.live.load();
  do {
    if (live > limit - size) return false;
  } while (!counters.live.compare_exchange_weak(live, live + size));
  counters.raise_mark(live + size);
  return true;
}

void count_within_limits(std::int64_t size) {
  if (count_if_it_fits(size, lowest_limit.load())) return;
  const AllocationLock lock;
  while (!count_if_it_fits(size, make_room(size))) {
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    try {
      return allocate_within_limits(bytes);
    } catch (const Error&) {
      if (asking == 0) note_refusal(/*may_cope=*/is_host_inside());
      // No operator is there whose error it would be, or it is one that the host language runs.
      if (works_for_a_limit() && (!AccountedWork::is_on() || is_host_inside()))
        translate_leaving_error();
      throw;
    }
  }

  static c10::DataPtr allocate_within_limits(std::size_t bytes) {
    void* data = nullptr;
    const bool limited = is_limited();
    try {
      if (limited) ask_for(bytes);
      if (!FreedBlocks::is_wanted()) FreedBlocks::free_all();
      data = allocate_or_give_up(bytes);
    } catch (c10::Error&) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw;
    }
    if (data == nullptr) return hand_out(data, bytes, &release);
    if (limited) {
      try {
        count_within_limits(size_of(data));
      } catch (...) {
        c10::free_cpu(data);
        throw;
      }
    } else {
      counters.add(size_of(data));
    }
    return hand_out_counted(data, bytes, limited);
  }

  static c10::DataPtr hand_out_counted(void* data, std::size_t bytes, bool limited) {
    counters.allocations.fetch_add(1, std::memory_order_relaxed);
    const bool is_of_others = limited && !works_for_a_limit();
    if (!limited || (!is_of_others && AccountedWork::is_on()))
      return hand_out(data, bytes, &release);
    (is_of_others ? others : past_operators).add(size_of(data));
    return hand_out(data, bytes, is_of_others ? &release_of_others : &release_past_operators);
  }

  static c10::DataPtr hand_out(void* data, std::size_t bytes, c10::DeleterFnPtr deleter) {
    c10::DataPtr result(data, data, deleter, c10::Device(c10::kCPU));
    c10::profiledCPUMemoryReporter().New(data, bytes);
    if (data == nullptr) return result;
    note_allocation(data);
    advise_large_pages(data, bytes);
    return result;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return data.get() == data.get_context();
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

class CountedLevel final : public LevelSource {
 public:
  explicit CountedLevel(Level& level) : level_(level) {}
  std::int64_t live() override { return level_.live.load(); }

  std::int64_t mark() override {
    // An allocation under way has added its bytes but perhaps not raised the mark yet.
    return std::max(level_.mark.load(), live());
  }

  std::int64_t restart_mark() override {
    std::int64_t before = level_.mark.exchange(0);
    level_.raise_mark(level_.live.load());
    return before;
  }

 private:
  Level& level_;
};

c10::Allocator* counting_allocator() {
  // Leaked: LibTorch keeps the pointer for ever.
  static auto* allocator = new CountingAllocator;
  return allocator;
}

[[maybe_unused]] const bool kInstalledAtLoad = (install_counting_allocator(), true);

}  // namespace

c10::DataPtr allocate_if_it_fits(std::size_t bytes) {
  if (!counting_allocator_is_installed()) return {};
  void* data = nullptr;
  try {
    data = c10::alloc_cpu(bytes);
  } catch (const c10::Error&) {
    return {};
  }
  if (data == nullptr) return CountingAllocator::hand_out(data, bytes, &release);
  const std::int64_t limit = lowest_limit.load();
  if (!count_if_it_fits(size_of(data), limit)) {
    c10::free_cpu(data);
    return {};
  }
  counters.allocations.fetch_add(1, std::memory_order_relaxed);
  // Within every limit: reprise's own, on whatever thread.
  return CountingAllocator::hand_out(data, bytes, &release);
}

void LimitScope::update_lowest() {
  std::int64_t lowest = kNoLimit;
  for (const LimitKeeper* keeper : keepers()) lowest = std::min(lowest, keeper->bound());
  lowest_limit = lowest;
}

namespace {

// A forked process has memory of its own. Another thread, which is not there any more, may have had
// the lock.
void lift_limits_in_child() {
  new (&limit_mutex()) LimitMutex;
  new (&keepers()) std::vector<LimitKeeper*>;
  lowest_limit = kNoLimit;
}

}  // namespace

LimitScope::LimitScope(LimitKeeper& keeper) : keeper_(keeper) {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, &lift_limits_in_child);
  std::lock_guard<LimitMutex> lock(limit_mutex());
  keepers().push_back(&keeper);
  update_lowest();
}

LimitScope::~LimitScope() {
  std::lock_guard<LimitMutex> lock(limit_mutex());
  // One for each of its scopes. A fork has lifted all.
  const auto place = std::ranges::find(keepers(), &keeper_);
  if (place != keepers().end()) keepers().erase(place);
  update_lowest();
}

void install_counting_allocator() {
  if (c10::GetAllocator(c10::kCPU) != c10::GetDefaultCPUAllocator()) return;
  // Above the default priority 0, so that a backend that is loaded later and sets its allocator in
  // passing does not end the counting.
  c10::SetAllocator(c10::kCPU, counting_allocator(), /*priority=*/1);
}

bool counting_allocator_is_installed() {
  return c10::GetAllocator(c10::kCPU) == counting_allocator();
}

bool is_counted_memory(const c10::DataPtr& data) {
  return data.get_deleter() == &release || is_of_other_threads(data) || is_past_operators(data);
}
std::int64_t counted_bytes(const c10::DataPtr& data) {
  if (data.get() == nullptr || !is_counted_memory(data)) return 0;
  // Of memory in a storage the context is the block.
  return size_of(data.get_context());
}
bool is_uncounted_memory(const c10::DataPtr& data) {
  return data.get_deleter() == c10::GetDefaultCPUAllocator()->raw_deleter();
}

LevelSource& cpu_levels() {
  static auto* levels = new CountedLevel(counters);
  return *levels;
}

PeakTracker& bytes_of_other_threads() {
  static auto* tracker = new PeakTracker(*new CountedLevel(others));
  return *tracker;
}

bool is_of_other_threads(const c10::DataPtr& data) {
  return data.get_deleter() == &release_of_others;
}

PeakTracker& bytes_past_operators() {
  static auto* tracker = new PeakTracker(*new CountedLevel(past_operators));
  return *tracker;
}

bool is_past_operators(const c10::DataPtr& data) {
  return data.get_deleter() == &release_past_operators;
}

std::int64_t cpu_allocation_count() { return counters.allocations.load(std::memory_order_relaxed); }

}  // namespace reprise::libtorch
