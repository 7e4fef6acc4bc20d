// Which parts of a file are in use. Parts that are given back are joined with free neighbours and
// used again, the lowest that fits first: a training step parks the same sizes every time, and
// finds the file as it needs it. Arithmetic only; not thread-safe.
#pragma once

#include <cstdint>
#include <map>

namespace reprise::store {

class Extents {
 public:
  // The offset of `length` bytes that are free.
  std::int64_t take(std::int64_t length);
  // Gives back what take() returned.
  void give(std::int64_t offset, std::int64_t length);

  std::int64_t used() const { return used_; }
  // Where the last part in use ends.
  std::int64_t end() const { return end_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // offset to length; none reaches end_
  std::int64_t used_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace reprise::store
