// What the tests of selective regions share: how often operators really run, and blocks to run them
// in.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "libtorch/operators/operator_interceptor.h"
#include "reprise/selective.h"
#include "reprise/store.h"
#include "tests/region/testing.h"

namespace reprise::testing {

inline constexpr CheckpointPolicy kSave = CheckpointPolicy::kMustSave;
inline constexpr CheckpointPolicy kRecompute = CheckpointPolicy::kPreferRecompute;

// Counts the operators that run on this thread and in its backward, those that are answered left
// out: it lies outside of any region.
class OperatorCounts {
 public:
  OperatorCounts() : scope_(counter_, libtorch::Reach::kBackwardAsWell) {}
  int operator[](const std::string& name) const {
    std::lock_guard<std::mutex> lock(counter_->mutex);
    const auto found = counter_->counts.find(name);
    return found == counter_->counts.end() ? 0 : found->second;
  }
  void reset() {
    std::lock_guard<std::mutex> lock(counter_->mutex);
    counter_->counts.clear();
  }

 private:
  struct Counter final : libtorch::OperatorInterceptor {
    void intercept(libtorch::OperatorCall& call) override {
      std::lock_guard<std::mutex> lock(mutex);
      ++counts[call.schema().name().substr(call.schema().name().find("::") + 2)];
    }
    std::mutex mutex;
    std::map<std::string, int> counts;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  libtorch::OperatorInterceptorScope scope_;
};

inline CheckpointOptions with_policy(OperatorPolicy policy, SelectiveOptions options = {}) {
  CheckpointOptions result;
  result.context = selective(std::move(policy), std::move(options));
  return result;
}

inline std::shared_ptr<Store> disk() {
  return disk_store({.folder = std::filesystem::temp_directory_path().string(), .in_flight = {}});
}

// Two linear layers with activations between and after.
struct Block {
  at::Tensor w1 = leaf({8, 8});
  at::Tensor w2 = leaf({8, 8});

  at::Tensor operator()(const at::Tensor& x) const {
    return at::tanh(at::gelu(x.mm(w1)).mm(w2)) * 2;
  }
  Tensors leaves(const at::Tensor& x) const { return {x, w1, w2}; }
};

}  // namespace reprise::testing
