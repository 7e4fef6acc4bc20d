// Copies of what stands in tensors at one moment, and of their version counters, to be put back
// later: the state around a region that its function writes to.
//
// Kept are the bytes between a tensor's first and last element, not whole storages, so that writing
// a slice of a large buffer copies the slice. Storages are not kept alive: one that is gone by then
// needs nothing. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace reprise::libtorch {

class KeptMemory {
 public:
  // Keeps what `tensor` covers and is not kept yet. It must have a storage. On the host a copy of
  // bytes; elsewhere on the device, on its current stream. `when` is remembered of the first time.
  void keep(const at::Tensor& tensor, std::size_t when = 0);
  // Keeps the version alone, and knows nothing of when.
  void keep_version(const at::Tensor& tensor);
  // Keeps, as it is now, what `other` keeps of storages that still exist.
  void keep_same(const KeptMemory& other);

  // Sets all of it to what was kept. May be repeated. What a tensor has lost since (a storage that
  // was made smaller) is left out.
  void put_back() const;

  // Forgets storages that exist no more.
  void drop_dead();
  // Whether anything of this storage is kept; if so, notes that it was asked for.
  bool touch(const c10::StorageImpl& storage);
  bool keeps(const c10::StorageImpl& storage) { return find(storage) != nullptr; }
  // Forgets what `again`, which was made by keep_same() from this, was not asked for, where `when`
  // is known and was less than `reached`. False if there was nothing of that kind.
  bool drop_untouched(const KeptMemory& again, std::size_t reached);
  bool empty() const { return storages_.empty(); }

 private:
  // Bytes [begin, end) of a storage.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
    // On the host, or else as a tensor of bytes.
    c10::DataPtr bytes;
    at::Tensor on_device;
  };
  struct Version {
    c10::VariableVersion counter;
    std::uint32_t version = 0;
  };
  struct Storage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    // In order, not overlapping.
    std::vector<Range> ranges;
    c10::SmallVector<Version, 1> versions;
    std::size_t when = 0;
    bool touched = false;

    void keep_range(c10::StorageImpl& alive, std::size_t begin, std::size_t end);
    void keep_version(const c10::VariableVersion& counter);
  };
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  Storage* find(const c10::StorageImpl& storage);
  Storage& entry_of(c10::StorageImpl& storage, std::size_t when);

  std::vector<Storage> storages_;
};

// `tensor` over a copy of the bytes that it covers, with a version counter of its own and no history.
at::Tensor with_own_memory(const at::Tensor& tensor);

}  // namespace reprise::libtorch
