// Puts back what runs of a model's layers have changed besides gradients, when it goes out of scope.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <reprise/random_state.h>

#include <exception>
#include <functional>
#include <vector>

namespace reprise::region {

// Random generators, buffers and what else layers name, as they were.
class Unchanged {
 public:
  Unchanged(const at::Tensor& sample, const std::vector<at::Tensor>& buffers,
            const std::vector<std::function<std::function<void()>()>>& states)
      : random_(RandomState::of_devices(accelerator_devices({&sample, 1}))), buffers_(buffers) {
    for (const at::Tensor& buffer : buffers_) before_.push_back(buffer.clone());
    for (const auto& look_at : states) put_back_.push_back(look_at());
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
    for (const auto& put_back : put_back_) put_back();
    const c10::AutoGradMode no_grad(false);
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      // Through another alias, so that graphs that saved the buffer do not count it as changed.
      buffers_[i].data().copy_(before_[i]);
    }
  }

  const RandomState random_;
  const std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> before_;
  std::vector<std::function<void()>> put_back_;
};

}  // namespace reprise::region
