// Bounds on the bytes that the CPU's allocator may have handed out at once, kept from inside the
// allocation: before bytes are counted that would pass a limit, its keeper is asked to free some.
//
// One lock guards all limits and everything that their keepers do: an allocation on any thread may
// have to wait for another's. It is recursive, as keepers allocate and free themselves. While its
// owner waits for something else (a kernel that may have threads of its own), it can lend the lock
// to whoever allocates. As long as bytes fit they are counted without it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "reprise/detail/freed_blocks.h"

namespace reprise::libtorch {

class LimitKeeper {
 public:
  // It is not asked as long as no more than `bound` bytes would be live.
  explicit LimitKeeper(std::int64_t bound) : bound_(bound) {}
  virtual ~LimitKeeper() = default;

  // What to do with bytes that would pass the limit.
  enum class Room {
    kMade,      // they fit now, if nobody took the room meanwhile
    kExceeded,  // they do not, and are to be counted all the same
  };
  // `wanted` more bytes are about to be counted. Throws to refuse them. Under the lock.
  virtual Room make_room(std::int64_t wanted) = 0;
  // malloc has failed, whatever the limit. Frees at least that many bytes, if there are so many;
  // false if there are none. Under the lock.
  virtual bool give_up(std::int64_t) { return false; }

  std::int64_t bound() const { return bound_; }

 private:
  const std::int64_t bound_;
};

class LimitMutex {
 public:
  void lock() {
    mutex_.lock();
    if (depth_ == 0 && is_lent_) wait_for_return();
    ++depth_;
  }
  // To make room for an allocation, and nothing else: also while another thread lends the lock.
  void lock_to_allocate() {
    mutex_.lock();
    ++depth_;
  }
  void unlock() {
    if (depth_ == 1 && last_ != nullptr && !is_lent_) run_last();
    --depth_;
    mutex_.unlock();
  }

  // Something that must wait until nobody is at work under the lock.
  class Last {
   public:
    Last() = default;
    Last(const Last&) = delete;
    Last& operator=(const Last&) = delete;

   protected:
    ~Last() = default;

   private:
    friend class LimitMutex;
    virtual void run_last() noexcept = 0;
    Last* next_ = nullptr;
  };
  // Has it run, once, before the lock is free again. Under the lock.
  void at_last(Last& work) {
    work.next_ = last_;
    last_ = &work;
  }

 private:
  friend class LimitLoan;
  void wait_for_return();
  void run_last();

  std::recursive_mutex mutex_;
  // By the thread that has it now.
  int depth_ = 0;
  bool is_lent_ = false;
  std::thread::id lender_;
  std::condition_variable_any returned_;
  Last* last_ = nullptr;
};

LimitMutex& limit_mutex();

// While it lives, the thread that has the lock lends it: other threads' allocations take their
// turns, and so do all of its own operations. Nothing else does. What the lender has in hand must
// bear that room is made meanwhile, as by an allocation of its own.
class LimitLoan {
 public:
  LimitLoan();
  ~LimitLoan();
  LimitLoan(const LimitLoan&) = delete;
  LimitLoan& operator=(const LimitLoan&) = delete;

 private:
  int depth_;
  bool was_lent_;
  std::thread::id lender_before_;
};

// While it lives, the keeper is asked.
class LimitScope {
 public:
  explicit LimitScope(LimitKeeper& keeper);
  ~LimitScope();
  LimitScope(const LimitScope&) = delete;
  LimitScope& operator=(const LimitScope&) = delete;

 private:
  static void update_lowest();

  LimitKeeper& keeper_;
  detail::FreedBlocksUse freed_blocks_;
};

}  // namespace reprise::libtorch
