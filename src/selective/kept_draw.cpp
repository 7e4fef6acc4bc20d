#include "selective/kept_draw.h"

#include <ATen/ops/empty.h>

#include "libtorch/memory/managed_memory.h"

namespace reprise::selecting {
namespace {

// Fewer take no longer to draw than the generator's state beside the bits takes room: 2.5 KB.
constexpr std::int64_t kLeastElements = std::int64_t{1} << 15;

bool can_hold(const at::Tensor& tensor) {
  return (tensor.is_cpu() || tensor.is_meta()) && tensor.layout() == at::kStrided &&
         has_kinds(static_cast<int>(tensor.element_size())) && tensor.is_contiguous() &&
         libtorch::ManagedMemory::manager_of(*tensor.storage().unsafeGetStorageImpl()) == nullptr;
}

}  // namespace

std::shared_ptr<const KeptDraw> KeptDraw::of(const at::Tensor& drawn) {
  const std::int64_t elements = drawn.numel();
  const int width = static_cast<int>(drawn.element_size());
  if (elements < kLeastElements || !can_hold(drawn)) return nullptr;
  const bool has_data = !drawn.is_meta();
  if (has_data && !may_be_of_two_kinds(drawn.const_data_ptr(), elements, width)) return nullptr;
  const std::shared_ptr<KeptDraw> kept(new KeptDraw);
  kept->bits_ = at::empty({bytes_of_bits(elements)}, drawn.options().dtype(at::kByte));
  // A tape would take them for uninitialized memory.
  if (!can_hold(kept->bits_)) return nullptr;
  if (!has_data) return kept;
  const auto kinds = pack_bits(drawn.const_data_ptr(), elements, width,
                               kept->bits_.mutable_data_ptr<std::uint8_t>());
  if (!kinds) return nullptr;
  kept->kinds_ = *kinds;
  return kept;
}

bool KeptDraw::write_to(const at::Tensor& tensor) const {
  if (!can_hold(tensor) || tensor.is_meta() != bits_.is_meta()) return false;
  if (tensor.is_meta()) return true;
  unpack_bits(bits_.const_data_ptr<std::uint8_t>(), kinds_, tensor.numel(),
              static_cast<int>(tensor.element_size()), tensor.mutable_data_ptr());
  return true;
}

}  // namespace reprise::selecting
