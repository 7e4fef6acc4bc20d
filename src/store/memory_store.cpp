// The store that keeps tensors where they are (reprise/store.h).
#include <reprise/store.h>

#include <utility>

namespace reprise {
namespace {

class KeptTensor final : public ParkedTensor {
 public:
  explicit KeptTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  at::Tensor load() override { return tensor_; }
  Bytes bytes() const override { return Bytes(static_cast<std::int64_t>(tensor_.nbytes())); }

 private:
  const at::Tensor tensor_;
};

class MemoryStore final : public Store {
 public:
  bool exact() const override { return true; }
  bool takes(c10::Device) const override { return true; }
  std::string name() const override { return "memory store"; }

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override {
    return std::make_unique<KeptTensor>(flat);
  }
};

}  // namespace

std::shared_ptr<Store> memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace reprise
