// A store of one's own: keeps floating-point values as bf16, in half the memory or less. Not exact.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/store.h>

namespace example {

class Bf16Store final : public reprise::Store {
 public:
  bool exact() const override { return false; }
  bool takes(c10::Device) const override { return true; }
  std::string name() const override { return "bf16 store"; }

 protected:
  std::unique_ptr<reprise::ParkedTensor> park_flat(const at::Tensor& flat) override {
    return std::make_unique<Rounded>(flat);
  }

 private:
  struct Rounded final : reprise::ParkedTensor {
    explicit Rounded(const at::Tensor& flat)
        : dtype(flat.scalar_type()),
          kept(flat.is_floating_point() ? flat.to(at::kBFloat16) : flat) {}
    at::Tensor load() override { return kept.to(dtype); }
    reprise::Bytes bytes() const override {
      return reprise::Bytes(static_cast<std::int64_t>(kept.nbytes()));
    }
    const at::ScalarType dtype;
    const at::Tensor kept;
  };
};

}  // namespace example
