// One operator call, kept so that it can be made again: the operator, its arguments that are no
// tensors, and of its tensors how they lie on their memory. The memory itself is somebody else's
// business: recording raises no use count of a tensor or a storage.
//
// Training makes the same calls again and again, on other memory. All that is not the memory is one
// form, which such calls share: it is compared with what has been seen, not copied.
//
// A call is run again below autograd, with everything above the backends off (autocast, functorch,
// Python): what was recorded there has been through all that. It is run under the ambient state of
// its first run (ambient_state.h), and where arguments were one tensor they are one again.
//
// Not for several threads at once: calls of one table are under one lock.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/base/ambient_state.h"
#include "libtorch/base/tensor_form.h"
#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_interceptor.h"
#include "libtorch/operators/recorded_function.h"

namespace reprise::libtorch {

struct CallForm {
  static constexpr std::int16_t kNoSlot = -1;
  // Where a tensor stands: argument number, and number in the list if it is one.
  struct Slot {
    std::uint16_t argument;
    std::int16_t element;
    // The first slot with the same tensor, or kNoSlot: operators ask whether two arguments are one.
    std::int16_t same_as;
    TensorForm form;
  };

  explicit CallForm(const OperatorCall& call);
  // Of one call of a custom function: `tensors` are its defined arguments.
  CallForm(std::shared_ptr<const RecordedFunction> called, const std::vector<at::Tensor>& tensors);

  // Whether the call is one of these. `now`: the ambient state.
  bool is_of(const OperatorCall& call, const AmbientState& now) const;

  // Of a custom function's, some operator, which is not called.
  c10::OperatorHandle op;
  std::shared_ptr<const RecordedFunction> function;
  // Tensors left out.
  c10::SmallVector<c10::IValue, 5> arguments;
  // The defined tensors among the arguments, in order.
  c10::SmallVector<Slot, 3> slots;
  // Some kernels make workspaces for backward only where gradients are wanted.
  bool grad_mode;
  // A call is made again as it was made first.
  AmbientState ambient;
  std::uint64_t hash = 0;
  // The table, and calls.
  std::uint32_t users = 0;

  // What its calls have shown so far.
  struct Learnt {
    // The least time that one took: a single measurement holds whatever else the machine did
    // meanwhile.
    double seconds = std::numeric_limits<double>::infinity();
    // What running one again takes, where that is learnt (tape/replay_costs.h); 0: not known yet.
    double again = 0;
    // key_of() and signature_of() it, once they were asked for.
    std::uint64_t key = 0;
    std::uint64_t signature = 0;
    // Nothing that the last one made was worth dropping.
    bool makes_little = false;
    // Of the first eight results that a producer has, a bit each: whether one was looked at, and
    // seemed to have elements of two kinds only.
    std::uint8_t looked_at = 0;
    std::uint8_t two_kinds = 0;
  };
  Learnt learnt;
};

// The same for calls of one operator whose tensors have the same shapes and types, and whose whole
// numbers and flags are the same: they take about the same time and memory.
std::uint64_t signature_of(const CallForm& form);
// Computed once.
inline std::uint64_t signature_of(CallForm& form) {
  std::uint64_t& signature = form.learnt.signature;
  if (signature == 0) signature = signature_of(std::as_const(form));
  return signature;
}

// A share in a form.
class RecordedCall {
 public:
  explicit RecordedCall(CallForm& form) : form_(&form) { ++form.users; }
  ~RecordedCall() {
    if (form_ != nullptr && --form_->users == 0) delete form_;
  }
  RecordedCall(RecordedCall&& other) noexcept : form_(std::exchange(other.form_, nullptr)) {}
  RecordedCall& operator=(RecordedCall&&) = delete;

  CallForm& form() const { return *form_; }
  std::string name() const;

  // Makes the call again. `storage_of` gives each slot's memory. It draws from copies of the
  // generators `before`, if there are any. The results.
  std::vector<c10::IValue> run(const std::function<c10::Storage(std::size_t)>& storage_of,
                               const std::vector<at::Generator>& before) const;

 private:
  CallForm* form_;
};

// The forms of the calls that were made, found by what they are.
class CallForms {
 public:
  // Where shapes or numbers change with every step the table would grow for ever: by then it takes
  // no more, and renew() begins it anew.
  static constexpr std::size_t kMost = 1 << 14;

  CallForms();
  ~CallForms();
  CallForms(const CallForms&) = delete;
  CallForms& operator=(const CallForms&) = delete;

  struct Found {
    CallForm* form = nullptr;
    std::uint64_t hash = 0;
    // Whether all arguments are of kinds that are compared, and all tensors plain ones.
    bool is_comparable = false;
  };
  // For a call that has not been made. `device`: of its tensors.
  Found find(const OperatorCall& call, c10::DeviceType device) const;
  // For one that was not found; shared with later ones where that can be.
  CallForm& add(const OperatorCall& call, const Found& found);
  // Only while nobody has a form in hand.
  void renew();

 private:
  void put(CallForm& form);
  void clear();

  // By hash, at most half full.
  std::vector<CallForm*> table_;
  std::size_t count_ = 0;
};

// As signature_of() the call's form, and the same in every process. Of calls that are not
// comparable it says only which operator is called.
std::uint64_t key_of(const OperatorCall& call, const CallForms::Found& found);

}  // namespace reprise::libtorch
