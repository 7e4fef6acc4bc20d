// Interceptors for tests: one that writes down what it sees, and one made of a lambda.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/operators/operator_interceptor.h"

namespace reprise::testing {

// "mm", "add_.Tensor": as in torch.ops.aten.
inline std::string short_name(const libtorch::OperatorCall& call) {
  const c10::FunctionSchema& schema = call.schema();
  std::string name = schema.name();
  if (name.starts_with("aten::")) name = name.substr(6);
  return schema.overload_name().empty() ? name : name + "." + schema.overload_name();
}

class LambdaInterceptor final : public libtorch::OperatorInterceptor {
 public:
  using Function = std::function<void(libtorch::OperatorCall&)>;
  explicit LambdaInterceptor(Function function) : function_(std::move(function)) {}
  void intercept(libtorch::OperatorCall& call) override { function_(call); }

 private:
  Function function_;
};

inline std::shared_ptr<LambdaInterceptor> intercept_by(LambdaInterceptor::Function function) {
  return std::make_shared<LambdaInterceptor>(std::move(function));
}

// The names of the operators seen, in order, from any thread.
class Seen final : public libtorch::OperatorInterceptor {
 public:
  void intercept(libtorch::OperatorCall& call) override {
    std::lock_guard<std::mutex> lock(mutex_);
    names_.push_back(short_name(call));
  }
  std::vector<std::string> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(names_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> names_;
};

// What `f` calls, as an interceptor sees it.
template <class F>
std::vector<std::string> operators_of(F&& f, libtorch::Reach reach = libtorch::Reach::kFunction) {
  const auto seen = std::make_shared<Seen>();
  {
    libtorch::OperatorInterceptorScope scope(seen, reach);
    f();
  }
  return seen->take();
}

}  // namespace reprise::testing
