#include "store/extents.h"

#include <iterator>

namespace reprise::store {

std::int64_t Extents::take(std::int64_t length) {
  used_ += length;
  for (auto part = free_.begin(); part != free_.end(); ++part) {
    const auto [offset, room] = *part;
    if (room < length) continue;
    free_.erase(part);
    if (room > length) free_.emplace(offset + length, room - length);
    return offset;
  }
  const std::int64_t offset = end_;
  end_ += length;
  return offset;
}

void Extents::give(std::int64_t offset, std::int64_t length) {
  used_ -= length;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + length == next->first) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      length += before->second;
      free_.erase(before);
    }
  }
  if (offset + length == end_) {
    end_ = offset;
  } else {
    free_.emplace(offset, length);
  }
}

}  // namespace reprise::store
