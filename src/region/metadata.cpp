#include "region/metadata.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <sstream>

#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/base/thread_state.h"
#include "libtorch/memory/managed_memory.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace reprise::region {

Metadata Metadata::of(const at::Tensor& tensor) {
  Metadata metadata;
  // A nested tensor has no sizes to ask for.
  if (!tensor.is_nested()) metadata.sizes = tensor.sizes();
  metadata.dtype = tensor.scalar_type();
  metadata.device = tensor.device();
  return metadata;
}

Mismatch::Difference Metadata::difference(std::size_t index, const at::Tensor& tensor) const {
  const c10::IntArrayRef now = tensor.is_nested() ? c10::IntArrayRef() : tensor.sizes();
  return {index, sizes, now, dtype, tensor.scalar_type(), device, tensor.device()};
}

at::Tensor Metadata::of_nothing() const {
  return at::zeros({}, at::TensorOptions().dtype(dtype).device(device)).expand(sizes);
}

std::string Metadata::describe() const {
  std::ostringstream text;
  text << dtype << " " << c10::IntArrayRef(sizes) << " on " << device;
  return text.str();
}

namespace {

// Strided tensors only: other layouts are hashed by their parts.
std::uint64_t hash_strided(at::Tensor tensor, std::uint64_t seed) {
  tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous();
  const libtorch::HeldMemory held(tensor);
  return XXH3_64bits_withSeed(tensor.const_data_ptr(), tensor.nbytes(), seed);
}

}  // namespace

std::uint64_t hash_values(const at::Tensor& saved) {
  if (saved.key_set().has(c10::DispatchKey::Python)) return 0;
  c10::AutoGradMode no_grad(false);
  const libtorch::OwnWorkScope own;
  // Not the function's operators: a trace does not show them.
  at::DisableRecordFunctionGuard untraced;
  const at::Tensor tensor = libtorch::without_history(saved);
  std::uint64_t seed = static_cast<std::uint64_t>(tensor.scalar_type());
  if (tensor.is_nested()) {
    for (const at::Tensor& part : tensor.unbind()) seed = hash_values(part) + 31 * seed;
    return seed;
  }
  seed = XXH3_64bits_withSeed(tensor.sizes().data(), tensor.sizes().size() * sizeof(std::int64_t),
                              seed);
  if (tensor.is_sparse()) {
    const at::Tensor coalesced = tensor.coalesce();
    return hash_strided(coalesced._values(), hash_strided(coalesced._indices(), seed));
  }
  if (tensor.layout() != at::kStrided) return hash_strided(tensor.to_dense(), seed);
  // A meta tensor has a shape and nothing else.
  if (tensor.is_meta()) return seed;
  return hash_strided(tensor, seed);
}

}  // namespace reprise::region
