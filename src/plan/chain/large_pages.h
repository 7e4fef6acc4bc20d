// An allocator for large tables that are read here and there: asks the system for large pages,
// which take fewer faults and translations.
#pragma once

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstddef>
#include <limits>
#include <new>

namespace reprise::plan {

template <class T>
struct LargePages {
  using value_type = T;

  LargePages() = default;
  template <class U>
  LargePages(const LargePages<U>&) {}  // NOLINT(google-explicit-constructor): as allocators are

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::bad_array_new_length();
    void* const memory = ::operator new(count * sizeof(T), alignment(count));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    // Advice: where it is not taken, the pages are small.
    if (is_large(count)) madvise(memory, count * sizeof(T), MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) { ::operator delete(memory, alignment(count)); }

  bool operator==(const LargePages&) const = default;

 private:
  static constexpr std::size_t kPage = std::size_t{1} << 21;

  static bool is_large(std::size_t count) { return count >= kPage / sizeof(T); }
  static std::align_val_t alignment(std::size_t count) {
    return std::align_val_t(is_large(count) ? kPage : alignof(T));
  }
};

}  // namespace reprise::plan
