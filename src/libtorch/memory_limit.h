// Bounds on the bytes that the CPU's allocator may have handed out at once, kept from inside the
// allocation: before bytes are counted that would pass a limit, its keeper is asked to free some.
//
// One lock guards all limits and everything that their keepers do: an allocation on any thread may
// have to wait for another's. It is recursive, as keepers allocate and free themselves. As long as
// bytes fit they are counted without it.
#pragma once

#include <cstdint>
#include <mutex>

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

  std::int64_t bound() const { return bound_; }

 private:
  const std::int64_t bound_;
};

std::recursive_mutex& limit_mutex();

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
};

}  // namespace reprise::libtorch
