#include "libtorch/operators/kernels_below_autograd.h"

#include <optional>
#include <utility>

namespace reprise::libtorch {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// An operator that is always run by its parts must have no kernel there: backends without a key of
// their own for autograd would take it for theirs.
bool may_run_whole(const c10::OperatorHandle& op) {
  const DispatchKeySet dense = DispatchKeySet(DispatchKey::Dense) |
                               DispatchKeySet(DispatchKeySet::RAW, c10::full_backend_mask);
  return !op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
         op.hasKernelForAnyDispatchKey(dense);
}

}  // namespace

// LibTorch tells of a new operator while it holds the lock that adding a kernel takes, so names are kept for later.
class KernelsBelowAutograd::Newcomers {
 public:
  void add(const c10::OperatorName& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    names_.push_back(name);
    any_ = true;
  }
  bool any() const { return any_; }
  // There are some until this gives none, so that nobody goes on while they are without a kernel.
  std::vector<c10::OperatorName> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (names_.empty()) any_ = false;
    return std::exchange(names_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<c10::OperatorName> names_;
  std::atomic<bool> any_{false};
};

void KernelsBelowAutograd::add(const c10::OperatorHandle& op) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (op.hasKernelForDispatchKey(kKeyBelowAutograd)) return;
  registrations_.push_back(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), kKeyBelowAutograd, kernel_, std::nullopt, nullptr, "reprise"));
}

void KernelsBelowAutograd::add_to_all() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::call_once(listens_, [&] {
    class Listener : public c10::OpRegistrationListener {
     public:
      explicit Listener(std::shared_ptr<Newcomers> newcomers) : newcomers_(std::move(newcomers)) {}
      void onOperatorRegistered(const c10::OperatorHandle& op) override {
        newcomers_->add(op.operator_name());
      }
      void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override {}

     private:
      std::shared_ptr<Newcomers> newcomers_;
    };
    newcomers_ = std::make_shared<Newcomers>();
    // It is called for the operators that are there.
    registrations_.push_back(
        dispatcher.addRegistrationListener(std::make_unique<Listener>(newcomers_)));
  });
  if (!newcomers_->any()) return;
  std::lock_guard<std::mutex> lock(adding_);
  for (auto names = newcomers_->take(); !names.empty(); names = newcomers_->take()) {
    for (const c10::OperatorName& name : names) {
      const auto op = dispatcher.findSchema(name);
      if (op && may_run_whole(*op)) add(*op);
    }
  }
}

}  // namespace reprise::libtorch
