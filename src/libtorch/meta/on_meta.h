// Operators that run on the meta device whatever they were asked for: shapes, types and sizes, with
// no memory and no arithmetic. What a program would do to its device can then be watched.
//
// While an OnMeta is in force as an operator interceptor,
// - factories make meta tensors, whatever device they name, and nothing moves to another device;
// - tensors of other devices are read through stand-ins of the same form, one for each storage, so
//   that data that is there may be used as it is. Scalars (tensors without dimensions), which
//   decide on types and are read as values, are left, but where they are written to;
// - gradients of a tensor that was used several times are added up in place where they are on real
//   devices, which autograd does not do on meta: such a call of add gives its first argument.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libtorch/operators/operator_interceptor.h"

namespace reprise::libtorch {

class OnMeta : public OperatorInterceptor {
 public:
  // Runs the call on meta tensors. Throws UsageError, naming the operator, where that cannot be:
  // its results depend on values, or nobody has said what shapes it gives.
  void intercept(OperatorCall& call) override;

  // The sizes of the first tensor of another device that operators read while gradients were asked
  // for, and that would have one of its own; empty: there was none. Backward would give it one of
  // the meta device, and throws for that, but where it has no dimensions.
  std::string trained_elsewhere() const;
  // The same for tensors that have a history, which backward would go on into: of any that was read
  // (null), or of one that backward of `result` leads to.
  std::string made_before(const at::Tensor* result) const;
  // Takes those gradients away again.
  void drop_gradients_elsewhere();

 protected:
  // The hooks below are called with this held: calls come from several threads.
  std::mutex& mutex() const { return mutex_; }

  // Whether autograd's engine calls this add, to sum up gradients.
  virtual bool sums_gradients() const { return false; }
  // A stand-in was made for memory that the program already had.
  virtual void stands_in(const c10::Storage& /*meta*/) {}
  // Before the call runs, with its arguments as they are on the meta device; and after it.
  virtual void before(OperatorCall& /*call*/) {}
  virtual void after(OperatorCall& /*call*/, at::ArrayRef<c10::IValue> /*arguments*/) {}

 private:
  bool adds_in_place(const OperatorCall& call) const;
  void run(OperatorCall& call, const std::vector<c10::IValue>& arguments, bool is_changed);
  bool put_arguments_on_meta(OperatorCall& call, std::vector<c10::IValue>& arguments);
  bool put_on_meta(c10::IValue& value, bool is_written);
  at::Tensor stand_in_for(const at::Tensor& tensor);
  void note_if_differentiable(const at::Tensor& elsewhere);

  struct StandIn {
    c10::Storage real;  // held: its address is the key
    c10::Storage meta;
  };
  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, StandIn> stand_ins_;
  std::vector<at::Tensor> made_before_;
  // Each with the gradient that it had.
  using TrainedElsewhere = std::pair<at::Tensor, at::Tensor>;
  std::vector<TrainedElsewhere> trained_elsewhere_;
};

// Whether operators of this thread run on the meta device by one of these.
bool is_on_meta();

// The form of a tensor on the meta device, on that storage of the meta device.
at::Tensor on_meta_storage(const at::Tensor& form, const c10::Storage& meta);
// A storage of the meta device with so many bytes to its name.
c10::Storage meta_storage(std::size_t bytes);

}  // namespace reprise::libtorch
