// What the tests of regions share: gradients compared bit by bit, errors with their texts, threads
// that begin together, and the means to see that a graph, a tensor or a byte is really gone.
#pragma once

#include <gtest/gtest.h>
#include <reprise/checkpoint.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libtorch/autograd/saved_tensor.h"

namespace reprise::testing {

using Tensors = std::vector<at::Tensor>;

// The two variants of a region, and the three ways to end a recomputation, as test parameters.
enum class Variant { kNonReentrant, kReentrant };

inline CheckpointOptions options_of(Variant variant) {
  CheckpointOptions options;
  options.reentrant = variant == Variant::kReentrant;
  return options;
}
inline CheckpointOptions reentrant() { return options_of(Variant::kReentrant); }
inline CheckpointOptions with_early_stop(EarlyStop early_stop) {
  CheckpointOptions options;
  options.early_stop = early_stop;
  return options;
}
inline CheckpointOptions with_check(DeterminismCheck check) {
  CheckpointOptions options;
  options.determinism_check = check;
  return options;
}

inline std::string variant_name(const ::testing::TestParamInfo<Variant>& info) {
  return info.param == Variant::kReentrant ? "Reentrant" : "NonReentrant";
}
inline std::string early_stop_name(const ::testing::TestParamInfo<EarlyStop>& info) {
  switch (info.param) {
    case EarlyStop::kNever:
      return "Never";
    case EarlyStop::kWhenCheaper:
      return "WhenCheaper";
    case EarlyStop::kAlways:
      return "Always";
  }
  return "Unknown";
}

// A leaf that requires grad, drawn from the default generator.
inline at::Tensor leaf(at::IntArrayRef sizes = {4, 5}) {
  return torch::randn(sizes).requires_grad_(true);
}

// Equal dtype, shape and bytes: what the library promises of gradients. Undefined equals undefined.
inline ::testing::AssertionResult same_bits(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.defined() != expected.defined()) {
    return ::testing::AssertionFailure()
           << "defined: " << actual.defined() << " against " << expected.defined();
  }
  if (!actual.defined()) return ::testing::AssertionSuccess();
  if (actual.dtype() != expected.dtype() || actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << actual.toString() << actual.sizes() << " against "
                                         << expected.toString() << expected.sizes();
  }
  const at::Tensor a = actual.detach().cpu().contiguous();
  const at::Tensor b = expected.detach().cpu().contiguous();
  if (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "largest difference " << (a - b).abs().max().item<double>() << " in " << a.toString()
         << a.sizes();
}

inline ::testing::AssertionResult same_bits(const Tensors& actual, const Tensors& expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " tensors against " << expected.size();
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (auto result = same_bits(actual[i], expected[i]); !result)
      return result << " (tensor " << i << ")";
  }
  return ::testing::AssertionSuccess();
}

// Copies of the leaves' gradients, which are cleared.
inline Tensors take_gradients(const Tensors& leaves) {
  Tensors gradients;
  for (const at::Tensor& leaf : leaves) {
    gradients.push_back(leaf.grad().defined() ? leaf.grad().detach().clone() : at::Tensor());
    leaf.mutable_grad() = at::Tensor();
  }
  return gradients;
}

// Seeds the default generator, runs `forward` and backward of its sum, and returns the leaves'
// gradients.
template <class F>
Tensors gradients_of(F&& forward, const Tensors& leaves, std::uint64_t seed = 2016) {
  torch::manual_seed(seed);
  take_gradients(leaves);
  at::Tensor result = forward();
  result.sum().backward();
  return take_gradients(leaves);
}

// The text of the E that `f` throws; a failed expectation and an empty text if it throws anything
// else.
template <class E, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "an error of another type was thrown: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
}

// A function that counts its runs; copies share the counter.
template <class F>
auto counted(int& runs, F f) {
  return [&runs, f = std::move(f)](const auto&... args) {
    ++runs;
    return f(args...);
  };
}

// Runs `f(index)` on each of `count` threads, all released at the same moment. What they throw, the
// first thread's error, is thrown here once all have ended.
inline void on_threads(int count, const std::function<void(int)>& f) {
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(count);
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      for (++waiting; waiting < count;) std::this_thread::yield();
      try {
        f(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

// Weak references to every node of an autograd graph, to see whether the graph has died. Nodes are
// held by shared_ptr up to LibTorch 2.12 and by intrusive_ptr from 2.13 on.
class GraphWatch {
 public:
  void add(const at::Tensor& root) {
    if (root.grad_fn()) visit(root.grad_fn());
  }

  std::size_t seen() const { return nodes_.size(); }

  std::vector<std::string> alive() const {
    std::vector<std::string> names;
    for (const auto& node : nodes_) {
      if (auto strong = node.lock()) names.push_back(strong->name());
    }
    return names;
  }

 private:
  void visit(const libtorch::NodePointer& node) {
    if (!seen_.insert(node.get()).second) return;
    nodes_.push_back(libtorch::weak_pointer(node));
    for (const auto& edge : node->next_edges()) {
      // Gradient accumulators belong to the leaves and outlive the graph with them.
      if (edge.function && edge.function->name().find("AccumulateGrad") == std::string::npos) {
        visit(edge.function);
      }
    }
  }

  std::unordered_set<const void*> seen_;
  std::vector<libtorch::WeakNodePointer> nodes_;
};

// Watches the memory of one tensor without keeping it alive.
class StorageWatch {
 public:
  explicit StorageWatch(const at::Tensor& tensor) : weak_(tensor.storage().getWeakStorageImpl()) {}
  bool alive() const { return !weak_.expired(); }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> weak_;
};

// Collects the warnings that LibTorch gives on this thread.
class WarningLog : public c10::WarningHandler {
 public:
  WarningLog() : guard_(this), always_before_(c10::WarningUtils::get_warnAlways()) {
    c10::WarningUtils::set_warnAlways(true);
  }
  ~WarningLog() override { c10::WarningUtils::set_warnAlways(always_before_); }
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }

  std::vector<std::string> texts;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
  bool always_before_;
};

inline at::Tensor dropout(const at::Tensor& x) { return torch::dropout(x, 0.5, /*train=*/true); }

}  // namespace reprise::testing

namespace reprise {

inline void PrintTo(Bytes bytes, std::ostream* out) { *out << bytes.count << " bytes"; }

}  // namespace reprise
