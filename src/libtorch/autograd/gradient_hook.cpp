#include "libtorch/autograd/gradient_hook.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <memory>
#include <mutex>
#include <utility>

namespace reprise::libtorch {
namespace {

// Device threads of one backward call a tensor's hook one at a time, but two backward passes over a
// graph that is kept may meet.
struct Watched {
  std::mutex mutex;
  std::shared_ptr<const SavedTensor> value;
};

}  // namespace

void on_gradient(const at::Tensor& tensor,
                 std::function<void(const at::Tensor&, const SavedTensor*)> use) {
  auto watched = std::make_shared<Watched>();
  // With its history the tensor would keep the hook, and so itself, alive.
  watched->value = std::make_shared<const SavedTensor>(alias_without_history(tensor));
  tensor.register_hook([watched, use = std::move(use)](const at::Tensor& gradient) {
    std::shared_ptr<const SavedTensor> value;
    {
      const std::lock_guard<std::mutex> lock(watched->mutex);
      value = torch::autograd::get_current_graph_task_keep_graph()
                  ? watched->value
                  : std::exchange(watched->value, nullptr);
    }
    if (!gradient.defined()) return;
    const at::NoGradGuard no_grad;
    use(gradient, value.get());
  });
}

}  // namespace reprise::libtorch
