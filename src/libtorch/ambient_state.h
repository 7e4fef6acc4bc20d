// The settings around an operator call that change what it computes, and that backward does not see
// as forward did: autocast of every device type, deterministic algorithms, the default dtype.
//
// A region takes them in forward and puts them back for its recomputation. Backward runs with
// autocast as it was at the backward() call, which is usually off; recomputing without this would
// give other dtypes.
//
// Autocast belongs to the thread. The other settings belong to the process: a scope that has to
// change them changes them for every thread while it is open. That is so only for programs that
// change them between forward and backward.
#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace reprise::libtorch {

class AmbientState {
 public:
  static AmbientState take();
  bool is_current() const { return *this == take(); }

  bool operator==(const AmbientState&) const = default;

 private:
  friend class AmbientScope;
  friend class AmbientMark;
  static constexpr std::size_t kMaxAutocastTypes = 12;
  static constexpr std::array<c10::ScalarType, kMaxAutocastTypes> undefined() {
    std::array<c10::ScalarType, kMaxAutocastTypes> dtypes{};
    dtypes.fill(c10::ScalarType::Undefined);
    return dtypes;
  }

  // Makes `to` of `from` where the two differ.
  static void change(const AmbientState& from, const AmbientState& to);

  // The autocast dispatch keys that are switched off, as raw bits.
  std::uint64_t autocast_off_ = 0;
  // In the order of LibTorch's list of device types with autocast. Undefined where it is off and
  // the process has no such device.
  std::array<c10::ScalarType, kMaxAutocastTypes> autocast_dtypes_ = undefined();
  c10::ScalarType default_dtype_{};
  bool autocast_cache_ = false;
  bool deterministic_ = false;
  bool deterministic_warn_only_ = false;
  bool fill_uninitialized_ = false;
  // Some device type has autocast on.
  bool autocast_on_ = false;
};

// The dispatch keys by which autocast is off on this thread, as raw bits. It is off for all device
// types while autocast makes a cast.
std::uint64_t autocast_keys_off();

// Puts a state in force until destroyed, then puts back what was there before, for exactly the
// settings that it changed. Does nothing where the state is in force already. A state with autocast
// on counts as one level of autocast's nesting, as torch.amp.autocast does: casts cached inside are
// dropped on leaving the outermost one.
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
