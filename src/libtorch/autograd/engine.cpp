#include "libtorch/autograd/engine.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_buffer.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "libtorch/autograd/between_nodes.h"
#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/base/thread_state.h"

namespace reprise::libtorch {
namespace {

using torch::autograd::Engine;
// How many nodes' functions run on this thread, one in another's backward call; and how many did
// when the innermost call began. Calls that are made deep in others get threads of their own.
thread_local int functions_running = 0, functions_around = 0;

class CallInFunctions {
 public:
  CallInFunctions() : outer_(std::exchange(functions_around, functions_running)) {}
  ~CallInFunctions() { functions_around = outer_; }
  CallInFunctions(const CallInFunctions&) = delete;
  CallInFunctions& operator=(const CallInFunctions&) = delete;

 private:
  int outer_;
};

std::unique_ptr<at::ObserverContext> function_begins(const at::RecordFunction&) {
  ++functions_running;
  return nullptr;
}
void function_ends(const at::RecordFunction&, at::ObserverContext*) { --functions_running; }

// Does nothing, in a backward call that runs nothing else.
struct EmptyNode final : torch::autograd::Node {
  EmptyNode() : Node(/*sequence_nr=*/0) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

// LibTorch takes tasks of failed calls off the thread's queue before any other.
void run_empty_backward(Engine& engine, c10::Device device = c10::kCPU) noexcept {
  try {
    const at::DisableRecordFunctionGuard unseen;
    const at::Tensor nothing = device.is_cpu()
                                   ? at::detail::empty_cpu({0}, c10::TensorOptions(at::kFloat))
                                   : at::empty({0}, c10::TensorOptions(at::kFloat).device(device));
    const NodePointer node = make_node<EmptyNode>();
    node->add_input_metadata(nothing);
    engine.execute({{node, 0}}, {nothing}, /*keep_graph=*/false, /*create_graph=*/false,
                   /*accumulate_grad=*/true, {});
  } catch (const std::exception&) {
    // What is left stays until the thread's next call.
  }
}

class EngineFront final : public Engine {
 public:
  explicit EngineFront(Engine& inner) : inner_(inner) {}
  ~EngineFront() override { stop(); }
  Engine& inner() const { return inner_; }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    try {
      const CallInFunctions in_functions;
      return inner_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (...) {
      // A call inside of another one shares its queue, which goes on.
      if (current_backward_id() < 0) run_empty_backward(inner_);
      throw;
    }
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task, NodePointer graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return inner_.execute_with_graph_task(graph_task, std::move(graph_root),
                                          std::move(input_buffer));
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return inner_.make_anomaly_metadata();
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    const ThreadState* state = current_state();
    if (state != nullptr && state->hooks != nullptr) {
      const auto& python = at::SavedTensorDefaultHooks::get_tls_state();
      // A compiler is tracing the function. Hooks must not see its tensors, which have no data.
      if (python.is_tracing) return nullptr;
      if (python.stack.size() <= state->python_hooks_below) return state->hooks->make_hooks();
    }
    return inner_.get_default_saved_variable_hooks();
  }

 private:
  Engine& inner_;
};

std::atomic<EngineFront*> installed_front{nullptr};

Engine& front_stub() { return *installed_front.load(std::memory_order_acquire); }

}  // namespace

void ensure_engine_front() {
  Engine& current = Engine::get_default_engine();
  if (&current == installed_front.load(std::memory_order_acquire)) return;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  Engine& inner = Engine::get_default_engine();
  if (&inner == installed_front.load(std::memory_order_acquire)) return;
  // An older front may still be reached through references that were taken before: it is left
  // alive.
  installed_front.store(new EngineFront(inner), std::memory_order_release);
  torch::autograd::set_default_engine_stub(&front_stub);
}

void free_leftovers_of_backward() {
  static thread_local const EngineFront* done_under = nullptr;
  const EngineFront* const front = installed_front.load(std::memory_order_acquire);
  if (front == nullptr || current_backward_id() >= 0) return;
  Engine& inner = front->inner();
  // Python calls its own engine past the front.
  if (front == done_under && typeid(inner) == typeid(Engine)) return;
  done_under = front;
  run_empty_backward(inner);
}

void settle_backward(c10::Device device) {
  if (!device.is_cpu()) run_empty_backward(Engine::get_default_engine(), device);
}

std::int64_t current_backward_id() { return torch::autograd::get_current_graph_task_id(); }

NodeFunctionsSeen::NodeFunctionsSeen()
    : callback_(
          at::addThreadLocalCallback(at::RecordFunctionCallback(&function_begins, &function_ends)
                                         .scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}
NodeFunctionsSeen::~NodeFunctionsSeen() { at::removeCallback(callback_); }

bool is_between_nodes() {
  return current_backward_id() >= 0 && functions_running == functions_around;
}

bool backward_accumulates() { return Engine::get_default_engine().is_checkpoint_valid(); }

bool is_accumulating() {
  if (current_backward_id() < 0) return false;
  const auto node = torch::autograd::get_current_node();
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
}

void at_end_of_backward(std::function<void()> callback) {
  Engine::get_default_engine().queue_callback(std::move(callback));
}

}  // namespace reprise::libtorch
