// Those who may write to a tensor's memory at any time, past LibTorch's operators.
#pragma once

#include <c10/core/Storage.h>

#include <utility>

namespace reprise::libtorch {

// Somebody past operators, such as a NumPy array, has the storage's bytes while this lives: what is computed from them meanwhile
// cannot be computed again. It keeps the storage alive. Any thread may make one, drop one and ask.
class OutsideWriter {
 public:
  OutsideWriter() = default;
  explicit OutsideWriter(c10::Storage storage);
  ~OutsideWriter();
  OutsideWriter(OutsideWriter&& other) noexcept = default;  // leaves `other` without a storage
  OutsideWriter& operator=(OutsideWriter&& other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }

  // Whether there is one for the storage.
  static bool is_on(const c10::StorageImpl& storage);

 private:
  c10::Storage storage_;
};

}  // namespace reprise::libtorch
