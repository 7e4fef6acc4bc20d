// Bounds on the bytes that the CPU's allocator may have handed out at once, kept from inside the
// allocation: before bytes are counted that would pass a limit, its keeper is asked to free some.
//
// One lock guards all limits and everything that their keepers do: an allocation on any thread may
// have to wait for another's. It is recursive, as keepers allocate and free themselves.
#pragma once

#include <cstdint>
#include <mutex>

namespace reprise::libtorch {

class LimitKeeper {
 public:
  virtual ~LimitKeeper() = default;
  // `wanted` more bytes are about to be counted. Returns when they fit, or are to be counted all
  // the same; throws to refuse them. Under the lock.
  virtual void make_room(std::int64_t wanted) = 0;
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
  LimitKeeper& keeper_;
};

}  // namespace reprise::libtorch
