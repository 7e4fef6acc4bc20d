// What regions leave to a guest language, whose functions they run: Python's binding sets it once.
//
// All regions of the process go by it, also those of C++ functions: these may call the guest's.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/checkpoint.h>

#include <memory>
#include <string>
#include <vector>

namespace reprise::region {

// Why a recomputation cannot stand for forward.
struct Mismatch {
  enum class Kind {
    kFewerSaved,
    kMoreSaved,
    kOtherMetadata,
    kOtherValues,
    kReadTwice,
    kReadTwiceInGroup,
    kChangedArgument,
    // The following three are found in reentrant regions only.
    kNotAccumulating,   // autograd::grad(), or `inputs`
    kSecondDerivative,  // create_graph
    kNoGradient,        // no result has a history
  };
  struct Difference {
    std::size_t index;
    c10::IntArrayRef sizes_before, sizes_now;
    at::ScalarType dtype_before, dtype_now;
    c10::Device device_before, device_now;
  };
  Kind kind = Kind::kFewerSaved;
  // The text of the DeterminismError.
  std::string text;
  // How many tensors each run saved (kFewerSaved, kMoreSaved).
  std::size_t saved_before = 0, saved_now = 0;
  // kOtherMetadata. They refer to what refuse() has in hand.
  std::vector<Difference> differences = {};
};

struct Foreign {
  // Throws what leaves a function at an early stop, in place of StopRecomputation: a std::exception,
  // from inside an operator. What the function then throws does not matter.
  void (*leave)() = nullptr;
  // Sees to it that the function is left when the running operator has returned: cheaper than an
  // exception through it. False if it cannot.
  bool (*leave_afterwards)() = nullptr;
  // The caller may wait for another thread that runs a function: unlocks what functions need (an
  // interpreter's lock) until the returned object is destroyed. Null if nothing is locked.
  std::shared_ptr<void> (*unlock)() = nullptr;
  // May throw what takes the place of the DeterminismError that follows.
  void (*report)(const detail::RegionCall& call, const Mismatch& mismatch) = nullptr;
  // In place of the warning that a reentrant region has no input that requires grad.
  void (*warn_of_no_gradient)() = nullptr;
};

// To be changed before regions run.
Foreign& foreign();

[[noreturn]] void refuse(const detail::RegionCall& call, const Mismatch& mismatch);

}  // namespace reprise::region
