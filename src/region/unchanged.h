// Puts back what runs of a model's layers have changed besides gradients, when it goes out of scope.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <reprise/random_state.h>

#include <exception>
#include <vector>

namespace reprise::region {

// Random generators and buffers, as they were.
class Unchanged {
 public:
  Unchanged(const at::Tensor& sample, const std::vector<at::Tensor>& buffers)
      : random_(RandomState::of_devices(accelerator_devices({&sample, 1}))), buffers_(buffers) {
    for (const at::Tensor& buffer : buffers_) before_.push_back(buffer.clone());
  }
  ~Unchanged() {
    try {
      restore();
    } catch (const std::exception& error) {
      TORCH_WARN("profile_chain: the model's buffers could not be restored: ", error.what());
    }
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  void restore() const {
    random_.restore();
    const c10::AutoGradMode no_grad(false);
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      // Through another alias, so that graphs that saved the buffer do not count it as changed.
      buffers_[i].data().copy_(before_[i]);
    }
  }

  const RandomState random_;
  const std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> before_;
};

}  // namespace reprise::region
