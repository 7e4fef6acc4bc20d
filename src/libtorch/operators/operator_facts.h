// What an operator does besides computing its results: draw random numbers, write to its arguments,
// give back views of them. The one place that knows, for every operator that is registered.
//
// Most of it stands in the operator's schema. What schemas leave out (native_batch_norm's schema
// does not say that it updates the running statistics) stands in tables (operator_tables.h), and an
// operator for which neither rule nor table gives an answer is in doubt: it is taken by its schema,
// and doubt_about() says why. A test asks that of every operator of LibTorch.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace reprise::libtorch {

struct OperatorFacts {
  static constexpr std::int16_t kNone = -1;

  // An argument (a tensor, an optional one or a list of them) that the operator writes to, by
  // position. With `only_if`: only where that argument, a bool, is true (`training`).
  struct Write {
    std::uint16_t argument = 0;
    std::int16_t only_if = kNone;

    // Whether a call with these arguments does it.
    bool happens(c10::ArrayRef<c10::IValue> arguments) const {
      return only_if == kNone || arguments[static_cast<std::size_t>(only_if)].toBool();
    }
  };
  c10::SmallVector<Write, 2> writes;

  // Draws random numbers: from the generator given as argument number `generator` if it has such
  // an argument and a generator is given, else from the default generator of its device.
  bool draws_random = false;
  std::int16_t generator = kNone;

  // Gives an argument that it writes to another shape or other memory (t_, resize_, set_).
  bool changes_shape = false;
  // Of what it writes to, only what stands around the data changes (t_, requires_grad_).
  bool writes_no_data = false;
  // Gives an argument other memory, or more of it (resize_, set_).
  bool changes_memory = false;
  // A result may share the memory of an argument that is not written to: a view.
  bool aliases = false;
  // Makes views of its one tensor, of which no data is read.
  bool only_views = false;
  // Goes on with its arguments and results after it has returned, with other processes: a
  // collective.
  bool communicates = false;
  // Results are no tensors, and no data of an argument is read: sizes, dtypes, flags.
  bool metadata_only = false;

  // Results hold bytes that nobody sets and nobody reads.
  bool leaves_bytes_unset = false;
  // Run again with the same arguments it may give other numbers, without drawing random ones.
  bool unrepeatable = false;

  // Is called for what it does, once and in order: it prints, counts or sends (ordered_effects.h).
  bool ordered_effects = false;

  // A result is new memory that depends on no tensor's values: zeros, empty_like, rand. Or memory
  // that is given to be such (out=).
  bool makes_new = false;

  // Its result shares memory with its argument until either is written to.
  bool copies_lazily = false;

  // How it is dispatched: made of other operators, which is what backends see of it; with a kernel
  // of its own for autocast; choosing its backend by other arguments than tensors.
  bool composite = false;
  bool casts = false;
  bool chooses_backend = false;

  bool writes_or_draws() const { return !writes.empty() || draws_random; }
};

// The facts of an operator, which must have a schema. Worked out at the first question; after that
// some nanoseconds, without a lock. The reference stays valid; of an operator that is deregistered
// and registered anew the facts are asked for anew.
const OperatorFacts& facts_of(const c10::OperatorHandle& op);

// The facts are to be worked out anew at the next question.
void forget_facts_of(const c10::OperatorHandle& op);

// Why the facts of this operator may be incomplete; empty where they are known.
std::string doubt_about(const c10::OperatorHandle& op);

// Whether the operator goes by this name: "aten::add.Tensor" (one overload; ".default" is the one
// without a name), "aten::add" (all overloads), or either without "aten::".
bool is_named(const c10::OperatorName& name, std::string_view text);
// Whether any registered operator does.
bool names_operator(std::string_view text);

}  // namespace reprise::libtorch
