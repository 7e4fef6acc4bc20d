// Whether something is one of several that are given once: a few are compared, many are sorted first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace reprise {

template <typename T>
class Members {
 public:
  // `all` outlives it.
  explicit Members(std::span<const T> all) : all_(all) {
    if (all.size() <= kFew) return;
    sorted_.assign(all.begin(), all.end());
    std::sort(sorted_.begin(), sorted_.end(), std::less<T>());
  }

  bool has(const T& one) const {
    return sorted_.empty()
               ? std::find(all_.begin(), all_.end(), one) != all_.end()
               : std::binary_search(sorted_.begin(), sorted_.end(), one, std::less<T>());
  }

 private:
  static constexpr std::size_t kFew = 8;
  std::span<const T> all_;
  std::vector<T> sorted_;
};

}  // namespace reprise
