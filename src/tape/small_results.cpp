// Results that cover a small part of their memory. mse_loss and smooth_l1_loss with a reduction
// compute their terms in memory of their input's size, and give it back as a scalar's storage.
#include <c10/util/Exception.h>
#include <reprise/error.h>

#include "libtorch/base/tensor_form.h"
#include "tape/tape.h"

namespace reprise::tape {

// The storage object stays, which views and autograd may come to know by then; so the program sees
// the same tensor with fewer bytes behind it.
bool Tape::shrink(const at::Tensor& tensor) const {
  constexpr std::int64_t kMost = 4 << 10;
  constexpr std::int64_t kLeastShare = 4;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto size = static_cast<std::int64_t>(storage.nbytes());
  const auto elements = static_cast<std::int64_t>(tensor.nbytes());
  if (elements == 0 || elements > kMost || elements >= size / kLeastShare) return false;
  if (size < options_.min_bytes.count || libtorch::leading_bytes(tensor) != elements) return false;
  if (!is_fresh(tensor)) return false;
  try {
    c10::Storage copy = copy_of(storage.data(), elements);
    storage.set_data_ptr_noswap(copy.set_data_ptr(c10::DataPtr(nullptr, copy.device())));
    storage.set_nbytes(static_cast<std::size_t>(elements));
    return true;
  } catch (const BudgetError&) {
    // As it came, it can be dropped.
  } catch (const c10::Error&) {
    // There is no memory; LibTorch has no type of its own for that on the CPU.
  }
  return false;
}

}  // namespace reprise::tape
