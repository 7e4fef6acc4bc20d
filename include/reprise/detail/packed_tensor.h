// A saved tensor as a hook packed it, in any type: the part of SavedTensorHooksScope that must be a
// template. Not for direct use.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace reprise::detail {

class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  virtual at::Tensor unpack() = 0;
};

using Packer = std::function<std::unique_ptr<PackedTensor>(const at::Tensor&)>;

template <class Pack, class Unpack>
Packer make_packer(Pack pack, Unpack unpack) {
  using Kept = std::decay_t<std::invoke_result_t<const Pack&, const at::Tensor&>>;
  struct Packed final : PackedTensor {
    Packed(Kept value, std::shared_ptr<Unpack> back)
        : kept(std::move(value)), unpack_(std::move(back)) {}
    at::Tensor unpack() override { return (*unpack_)(std::as_const(kept)); }
    Kept kept;
    std::shared_ptr<Unpack> unpack_;
  };
  return [pack = std::move(pack), unpack = std::make_shared<Unpack>(std::move(unpack))](
             const at::Tensor& tensor) -> std::unique_ptr<PackedTensor> {
    return std::make_unique<Packed>(pack(tensor), unpack);
  };
}

}  // namespace reprise::detail
