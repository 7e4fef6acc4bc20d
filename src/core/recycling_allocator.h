// An allocator for objects of one type that come and go by the hundred, each made in forward and
// dropped in backward: blocks above some hundred bytes cost malloc more than small ones do,
// because it merges and splits them. Freed blocks are kept for the thread that freed them, the last
// one first, since it is still in the cache. That helps where one thread runs forward and backward,
// as on the CPU; where autograd has a thread for the device, that thread keeps some blocks that it
// does not need.
//
// Thread-safe: a block may be freed by another thread than allocated it.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPRISE_RECYCLES 0  // or uses after the end of a life would go unseen
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPRISE_RECYCLES 0
#endif
#endif
#ifndef REPRISE_RECYCLES
#define REPRISE_RECYCLES 1
#endif

namespace reprise {

// The blocks of `size` bytes that the calling thread keeps, `most` of them.
template <std::size_t size, std::size_t most = 256>
class KeptBlocks {
 public:
  static constexpr std::size_t kMost = most;

  static void* take() {
    List& list = kept();
    if (list.first == nullptr) return ::operator new(size);
    Block* block = list.first;
    list.first = block->next;
    --list.count;
    return block;
  }

  static void give(void* memory) noexcept {
    List& list = kept();
    if (list.closed || list.count == kMost) return ::operator delete(memory);
    list.first = new (memory) Block{list.first};
    ++list.count;
  }

  static std::size_t count() { return kept().count; }

 private:
  struct Block {
    Block* next;
  };
  static_assert(size >= sizeof(Block));

  // Trivially destructible, so that objects which outlive the thread's other variables may still be
  // freed; Closer empties it.
  struct List {
    Block* first;
    std::size_t count;
    bool closed;
    bool watched;
  };
  struct Closer {
    ~Closer() {
      List& list = list_of_thread();
      list.closed = true;
      while (list.first != nullptr) {
        Block* next = list.first->next;
        ::operator delete(list.first);
        list.first = next;
      }
      list.count = 0;
    }
  };

  static List& list_of_thread() {
    static thread_local constinit List list{};
    return list;
  }
  static List& kept() {
    List& list = list_of_thread();
    if (!list.watched) {
      list.watched = true;
      static thread_local Closer closer;
    }
    return list;
  }
};

// For std::allocate_shared.
template <class T>
struct RecyclingAllocator {
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  using value_type = T;

  RecyclingAllocator() = default;
  template <class U>
  explicit(false) RecyclingAllocator(const RecyclingAllocator<U>&) noexcept {}

  T* allocate(std::size_t n) {
    if (REPRISE_RECYCLES && n == 1) return static_cast<T*>(KeptBlocks<sizeof(T)>::take());
    return std::allocator<T>().allocate(n);
  }

  void deallocate(T* memory, std::size_t n) noexcept {
    if (REPRISE_RECYCLES && n == 1) return KeptBlocks<sizeof(T)>::give(memory);
    std::allocator<T>().deallocate(memory, n);
  }

  template <class U>
  bool operator==(const RecyclingAllocator<U>&) const noexcept {
    return true;
  }
};

// A base for classes, final ones, whose objects are made with new.
template <class T, std::size_t most = 256>
class Recycled {
 public:
  static void* operator new(std::size_t size) {
    return REPRISE_RECYCLES ? KeptBlocks<sizeof(T), most>::take() : ::operator new(size);
  }
  static void operator delete(void* memory) noexcept {
    REPRISE_RECYCLES ? KeptBlocks<sizeof(T), most>::give(memory) : ::operator delete(memory);
  }
};

}  // namespace reprise
