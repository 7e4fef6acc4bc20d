// What surrounds an operator call and changes what its kernels compute: a recomputed region and a
// replayed call run under that of the first run, and put back what was there.
//
// | state                              | read by                     | regions | calls | tested by
// | ---------------------------------- | --------------------------- | ------- | ----- | ---------
// | autocast: on, dtype, weights cache | operators in f, and those   | kept    | kept  | autocast
// |   (thread)                         |   that a kernel calls       |         |       |
// | at::Context (process):             |                             |         |       |
// |   oneDNN and NNPACK on,            | CPU convolutions, products, | kept    | kept  | settings
// |     deterministic, TF32            |   RNNs, interpolation       |         |       |
// |   float32 precision by backend and | convolutions, products,     | kept    | kept  | settings
// |     operator, matmul precision     |   RNNs                      |         |       |
// |   float16 sums on the CPU          | float16 products            | kept    | kept  | settings
// |   cuDNN on, benchmark, its limit,  | convolutions, RNNs, batch   | kept    | kept  | settings
// |     deterministic, TF32, depthwise |   norm on devices           |         |       |
// |   cuBLAS: reduced and split sums,  | products on devices         | kept    | kept  | settings
// |     float16 accumulation, SMs      |                             |         |       |
// |   BLAS, linear algebra and ROCm    | products, factorizations,   | kept    | kept  | settings
// |     attention libraries preferred  |   attention on devices      |         |       |
// |   attention: flash, FA3, efficient,| the choice of its kernel    | kept    | kept  | settings
// |     math, cuDNN, other; order      |                             |         |       |
// |   deterministic, warn only, fill   | indexing, empty(), uphold   | kept    | kept  | settings
// |   quantized engine, weights freed  | quantized operators         | kept    | kept  | settings
// |   sparse invariants, warnings      | no result: errors, warnings | kept    | kept  | settings
// | default dtype (process)            | division, factories         | kept    | kept  | settings
// | threads (thread)                   | how sums are split          | kept    | kept  | settings
// | control word: rounding, denormals  | all arithmetic              | kept    | kept  | settings
// |   (thread)                         |                             |         |       |
// | gradients wanted (thread)          | workspaces for backward     | on      | kept  | forms
//
// Elsewhere: devices and streams (tape/restorer), generators (own_draws, region/replay_state).
// Not kept:
// - inference mode, vmap, functorch and Python's modes, which are above the kernels. A
//   replayed call passes them by; a region's function meets those of backward.
// - the control words of OpenMP's other threads, which cannot be asked for or set. Such a thread
//   takes that of the thread that starts it.
// - environment variables, which libraries read when they are first used.
//
// "settings" are tests/region/ambient_settings.h, which a kernel of the tests reads in
// ambient_state_test (libtorch), checkpoint_ambient_test (region) and ambient_test (tape);
// "autocast" is in these and in checkpoint_autocast_test, "forms" in recorded_call_test.
//
// Settings of the process that have to be changed for a replay are so for every thread meanwhile.
// That is so only for programs that change them between the first run and the replay.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "libtorch/base/process_settings.h"

namespace reprise::libtorch {

class AmbientState {
 public:
  // For a function that calls operators.
  static AmbientState take();
  // For one call below autograd: dtypes of autocast only where it is on.
  static AmbientState take_for_call();
  bool is_current() const { return *this == take(); }

  bool operator==(const AmbientState&) const = default;

  // The keys of device types with autocast on.
  c10::DispatchKeySet autocast_keys() const;
  // Kernels divided their work among threads, which they do not inside of a parallel region, where
  // this is asked.
  bool needs_another_thread() const;

 private:
  friend class AmbientScope;
  friend class AmbientMark;
  static constexpr std::size_t kMaxAutocastTypes = 12;
  static constexpr std::array<c10::ScalarType, kMaxAutocastTypes> undefined() {
    std::array<c10::ScalarType, kMaxAutocastTypes> dtypes{};
    dtypes.fill(c10::ScalarType::Undefined);
    return dtypes;
  }

  template <bool kOfCall>
  static AmbientState take_all();
  // Makes `to` of `from` where the two differ, but for the process's settings.
  static void change(const AmbientState& from, const AmbientState& to);
  static void change_control_word(const AmbientState& from, const AmbientState& to);

  const ProcessSettings* process_ = nullptr;
  // The autocast dispatch keys that are switched off, as raw bits.
  std::uint64_t autocast_off_ = 0;
  // In the order of LibTorch's list of device types with autocast. Undefined where it is off and
  // the process has no such device.
  std::array<c10::ScalarType, kMaxAutocastTypes> autocast_dtypes_ = undefined();
  // Among which kernels that are called here divide their work.
  std::int32_t threads_ = 1;
  // What of the processor's control word changes results: rounding, and denormal numbers.
  std::uint16_t control_word_ = 0;
  bool autocast_cache_ = false;
  // Some device type has autocast on.
  bool autocast_on_ = false;
  bool is_of_call_ = false;
};

// The dispatch keys by which autocast is off on this thread, as raw bits. It is off for all device
// types while autocast makes a cast.
std::uint64_t autocast_keys_off();

// Puts a state in force until destroyed, then puts back what was there before, for exactly the
// settings that it changed. Does nothing where the state is in force already. A state with autocast
// on counts as one level of autocast's nesting, as torch.amp.autocast does: casts cached inside are
// dropped on leaving the outermost one. That of a call does not, which caches none.
class AmbientScope {
 public:
  explicit AmbientScope(const AmbientState& state);
  ~AmbientScope();
  AmbientScope(const AmbientScope&) = delete;
  AmbientScope& operator=(const AmbientScope&) = delete;

 private:
  AmbientState before_;
  AmbientState inside_;
  bool changed_ = false;
  std::optional<ProcessSettingsScope> process_;
};

// Where the thread's ambient state stands, to come back to after a function that was left half way
// and could not undo what it had switched by hand: LibTorch has no guard for autocast in C++.
class AmbientMark {
 public:
  AmbientMark();
  void put_back() const;

 private:
  AmbientState state_;
  int autocast_nesting_;
};

// Lets autograd record, whatever the caller has switched off: grad mode on, inference mode off. For
// running a region's function again; what inference mode computes could not be used in backward.
class RecordingScope {
 public:
  RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  // Leaving inference mode is dear and rarely needed.
  std::optional<c10::InferenceMode> inference_off_;
  c10::AutoGradMode grad_on_;
};

}  // namespace reprise::libtorch
