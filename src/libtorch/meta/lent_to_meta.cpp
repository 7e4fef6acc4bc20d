// Lends tensors in place: TensorImpl::shallow_copy_from puts other contents into the object that
// everybody holds, and keeps its identity, its version counter and its place in autograd.
#include "libtorch/meta/lent_to_meta.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <reprise/error.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "libtorch/meta/on_meta.h"

namespace reprise::libtorch {
namespace {

using Accumulator = decltype(torch::autograd::impl::try_get_grad_accumulator(at::Tensor()));
using torch::autograd::Node;
// Nodes are held by std::shared_ptr in LibTorch up to 2.12.
using WeakAccumulator = std::conditional_t<std::is_same_v<Accumulator, std::shared_ptr<Node>>,
                                           std::weak_ptr<Node>, c10::weak_intrusive_ptr<Node>>;

void check_lendable(const at::Tensor& tensor) {
  if (tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_quantized() &&
      !tensor.is_nested()) {
    return;
  }
  throw UsageError(c10::str("a tensor of sizes ", tensor.sizes(), " has no plain strided memory (",
                            tensor.toString(),
                            "), so that it cannot stand on meta for a while; make it dense, or ",
                            "leave it out of the estimate"));
}

}  // namespace

// One tensor and all that gives it back.
class LentToMeta::Loan {
 public:
  explicit Loan(at::Tensor tensor)
      : tensor_(std::move(tensor)),
        real_(tensor_.variable_data()),
        grad_(tensor_.grad()),
        accumulator_(torch::autograd::impl::try_get_grad_accumulator(tensor_)),
        is_leaf_(tensor_.is_leaf()),
        requires_grad_(tensor_.requires_grad()) {
    if (!tensor_.is_inference()) version_ = tensor_._version();
  }
  ~Loan() {
    hold(real_);
    if (!tensor_.is_inference()) {
      c10::VariableVersion counter = tensor_.unsafeGetTensorImpl()->version_counter();
      counter.set_version(version_);
    }
    make_leaf_again();
    put_in_graphs(grad_, accumulator_);
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  void begin(const at::Tensor& meta) {
    // A node that lives on, in a graph that somebody keeps, expects gradients of its own device.
    put_in_graphs(at::Tensor(), Accumulator());
    hold(meta);
  }

 private:
  void hold(const at::Tensor& contents) {
    tensor_.unsafeGetTensorImpl()->shallow_copy_from(contents.getIntrusivePtr());
  }
  // Writing to a tensor gives it a history, and code may ask for its gradient or no longer.
  void make_leaf_again() {
    auto* const meta = torch::autograd::impl::get_autograd_meta(tensor_);
    if (!is_leaf_ || meta == nullptr) return;
    meta->grad_fn_.reset();
    meta->output_nr_ = 0;
    meta->requires_grad_ = requires_grad_;
  }
  void put_in_graphs(const at::Tensor& grad, const Accumulator& accumulator) {
    // Tensors that autograd has never seen stay so.
    if (torch::autograd::impl::get_autograd_meta(tensor_) == nullptr) return;
    tensor_.mutable_grad() = grad;
    torch::autograd::impl::set_grad_accumulator(tensor_, WeakAccumulator(accumulator));
  }

  at::Tensor tensor_;
  at::Tensor real_;
  at::Tensor grad_;
  Accumulator accumulator_;
  bool is_leaf_, requires_grad_;
  std::uint32_t version_ = 0;
};

LentToMeta::LentToMeta(std::vector<at::Tensor> tensors) {
  const c10::NoGradGuard no_grad;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    check_lendable(tensor);
    const c10::Storage& real = tensor.storage();
    c10::Storage& memory = storages[real.unsafeGetStorageImpl()];
    if (!memory) memory = meta_storage(real.nbytes());
    const at::Tensor meta = on_meta_storage(tensor, memory);
    loans_.push_back(std::make_unique<Loan>(std::move(tensor)));
    loans_.back()->begin(meta);
  }
}

LentToMeta::~LentToMeta() = default;

}  // namespace reprise::libtorch
