// Weights of a step's values, and the looks at gradients that they are made from
// (reprise/budget_extensions.h).
//
// A result is seen below autograd, before it has a history. When the thread calls its next operator
// it has one, if it gets one: then a hook is put on its gradient. Until then there is a weak
// reference to the tensor, afterwards the hook's number in this step's table, so that neither keeps
// a byte alive in forward. A tensor that an operator reads is alive when that operator is called:
// so nothing is missed that anybody reads. In backward the node that saved a value lets go of it
// when it has run, and only then is the gradient of the value complete: what is read there is held
// until its hook is called. Nothing waits for a look: where room is needed, what is held for it
// alone goes first, and at the end of the step all of it goes.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/budget_extensions.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "libtorch/base/tensor_form.h"
#include "libtorch/operators/operator_interceptor.h"
#include "tape/value.h"

namespace reprise::tape {

class Weighing : public std::enable_shared_from_this<Weighing> {
 public:
  // `recorder`: of the step's operators.
  Weighing(std::unique_ptr<ValueWeights::Step> step, const libtorch::OperatorInterceptor& recorder)
      : step_(std::move(step)), recorder_(recorder) {}

  // Under libtorch::limit_mutex(). The next call that makes what could be dropped, and the weight
  // of its values. Throws UsageError for a weight out of bounds.
  ValueWeights::Call next_call(std::string_view name, std::uint64_t kind) {
    return {.name = name, .kind = kind, .number = calls_++};
  }
  float weight_of(const ValueWeights::Call& call) const;
  // `tensor` is the value's, and gets its history from what this thread does next.
  void watch(const at::Tensor& tensor, Value& value, const ValueWeights::Call& call);
  // Under libtorch::limit_mutex(). In backward an operator reads the value: its memory stays until
  // its gradient has been looked at, which is made by then, though the node that had saved it lets
  // go of it at once.
  void hold(std::uint32_t watch, const c10::Storage& storage);
  // Lets go of a value that nobody else holds or uses; false if there is none. Under the lock.
  bool let_go_one();
  // The value is gone.
  void forget(std::uint32_t watch) { watched_[watch].value = nullptr; }

  // Without the lock: of all of them.
  void let_go() noexcept;
  // Without the lock: when this thread calls an operator.
  void attach();
  // After the last call. Once.
  void end(bool is_whole) noexcept;

 private:
  struct Watched {
    Value* value;
    libtorch::TensorForm form;
    ValueWeights::Call call;
    c10::Storage held;
    // The backward in which the gradient was looked at last.
    std::int64_t looked_in = kNever;
  };
  static constexpr std::int64_t kNever = -2;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  // Of results that may get a history.
  struct Waiting {
    std::thread::id thread;
    WeakTensor tensor;
    std::uint32_t watch;
  };

  void look(std::uint32_t watch, const at::Tensor& gradient);

  // Null once the step is over.
  std::shared_ptr<ValueWeights::Step> step_;
  const libtorch::OperatorInterceptor& recorder_;
  std::int64_t calls_ = 0;
  std::vector<Watched> watched_;
  // What may be held still, in the order in which it was read.
  std::vector<std::uint32_t> held_;
  std::mutex mutex_;  // of what follows
  std::vector<Waiting> waiting_;
  std::vector<bool> has_hook_;  // by number of the watch
};

}  // namespace reprise::tape
