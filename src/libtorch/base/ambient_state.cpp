// Taking is on the path of every region, so the switches of ten device types are read from the
// thread's dispatch keys in one look, and their dtypes only where autocast is on or the process has
// a backend for the type.
#include "libtorch/base/ambient_state.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cfenv>
#include <tuple>
#include <utility>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace reprise::libtorch {

namespace {

const auto& autocast_types() { return at::autocast::_AUTOCAST_SUPPORTED_DEVICES; }
constexpr std::size_t kAutocastTypes =
    std::tuple_size_v<std::remove_cvref_t<decltype(autocast_types())>>;

// The dispatch keys by which autocast is switched on and off, as raw bits.
struct AutocastKeys {
  std::array<std::uint64_t, kAutocastTypes> by_type{};
  std::uint64_t all = 0;

  AutocastKeys() {
    for (std::size_t i = 0; i < kAutocastTypes; ++i) {
      by_type[i] = c10::DispatchKeySet(at::autocast::get_autocast_dispatch_key_from_device_type(
                                           autocast_types()[i]))
                       .raw_repr();
      all |= by_type[i];
    }
  }
};

const AutocastKeys& autocast_keys_by_type() {
  static const AutocastKeys keys;
  return keys;
}

std::int32_t threads_here() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

#ifdef __SSE2__

// Denormal operands are zeros; the two bits of rounding; denormal results are zeros. Not the flags
// of what has happened, nor which of that is trapped.
constexpr unsigned kControlBits = 0x0040 | 0x6000 | 0x8000;
constexpr unsigned kRounding = 0x6000;

std::uint16_t control_word() { return static_cast<std::uint16_t>(_mm_getcsr() & kControlBits); }

void set_control_word(unsigned word) {
  // Also that of the x87 unit, by which the C library goes.
  std::fesetround(static_cast<int>((word & kRounding) >> 3));
  _mm_setcsr((_mm_getcsr() & ~kControlBits) | word);
}

#else

std::uint16_t control_word() { return static_cast<std::uint16_t>(std::fegetround()); }
void set_control_word(unsigned word) { std::fesetround(static_cast<int>(word)); }

#endif

}  // namespace

std::uint64_t autocast_keys_off() {
  return c10::impl::tls_local_dispatch_key_set().excluded_.raw_repr() & autocast_keys_by_type().all;
}

template <bool kOfCall>
AmbientState AmbientState::take_all() {
  static_assert(kAutocastTypes <= kMaxAutocastTypes, "more device types with autocast than room");
  AmbientState state;
  const AutocastKeys& keys = autocast_keys_by_type();
  state.is_of_call_ = kOfCall;
  state.process_ = &ProcessSettings::current();
  state.threads_ = threads_here();
  state.control_word_ = control_word();
  state.autocast_off_ = autocast_keys_off();
  state.autocast_on_ = state.autocast_off_ != keys.all;
  if (kOfCall && !state.autocast_on_) return state;
  const std::uint64_t* const by_type = keys.by_type.data();
  const auto take_dtype = [&state, by_type](std::size_t i) {
    const c10::DeviceType type = autocast_types()[i];
    const bool on = (state.autocast_off_ & by_type[i]) == 0;
    if (on || (!kOfCall && c10::impl::hasDeviceGuardImpl(type))) {
      state.autocast_dtypes_[i] = at::autocast::get_autocast_dtype(type);
    }
  };
  // Unrolled, being on the path of every region.
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (take_dtype(i), ...);
  }(std::make_index_sequence<kAutocastTypes>());
  state.autocast_cache_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

AmbientState AmbientState::take() { return take_all<false>(); }
AmbientState AmbientState::take_for_call() { return take_all<true>(); }

c10::DispatchKeySet AmbientState::autocast_keys() const {
  if (!autocast_on_) return {};
  return {c10::DispatchKeySet::RAW, autocast_keys_by_type().all & ~autocast_off_};
}

bool AmbientState::needs_another_thread() const { return threads_ > 1 && at::in_parallel_region(); }

void AmbientState::change(const AmbientState& from, const AmbientState& to) {
  for (std::size_t i = 0; i < kAutocastTypes; ++i) {
    const c10::DeviceType type = autocast_types()[i];
    const std::uint64_t key = autocast_keys_by_type().by_type[i];
    if (((from.autocast_off_ ^ to.autocast_off_) & key) != 0) {
      at::autocast::set_autocast_enabled(type, (to.autocast_off_ & key) == 0);
    }
    if (from.autocast_dtypes_[i] != to.autocast_dtypes_[i] &&
        to.autocast_dtypes_[i] != at::ScalarType::Undefined) {
      at::autocast::set_autocast_dtype(type, to.autocast_dtypes_[i]);
    }
  }
  if (from.autocast_cache_ != to.autocast_cache_) {
    at::autocast::set_autocast_cache_enabled(to.autocast_cache_);
  }
  if (from.threads_ != to.threads_ && !at::in_parallel_region()) at::set_num_threads(to.threads_);
}

void AmbientState::change_control_word(const AmbientState& from, const AmbientState& to) {
  const unsigned changed = from.control_word_ ^ to.control_word_;
  if (changed != 0) set_control_word((control_word() & ~changed) | (to.control_word_ & changed));
}

AmbientScope::AmbientScope(const AmbientState& state)
    : before_(state.is_of_call_ ? AmbientState::take_for_call() : AmbientState::take()) {
  if (before_.process_ != state.process_ || ProcessSettingsScope::is_any_open()) {
    process_.emplace(*state.process_);
  }
  if (before_ == state) return;
  inside_ = state;
  if (!inside_.is_of_call_ || inside_.autocast_on_) {
    for (std::size_t i = 0; i < kAutocastTypes; ++i) {
      before_.autocast_dtypes_[i] = at::autocast::get_autocast_dtype(autocast_types()[i]);
    }
    before_.autocast_cache_ = at::autocast::is_autocast_cache_enabled();
  } else {
    inside_.autocast_cache_ = before_.autocast_cache_;
  }
  changed_ = true;
  if (inside_.autocast_on_ && !inside_.is_of_call_) at::autocast::increment_nesting();
  // The control word last, and back first: threads that are started take it along.
  AmbientState::change(before_, inside_);
  AmbientState::change_control_word(before_, inside_);
}

AmbientScope::~AmbientScope() {
  if (!changed_) return;
  AmbientState::change_control_word(inside_, before_);
  if (inside_.autocast_on_ && !inside_.is_of_call_ && at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  AmbientState::change(inside_, before_);
}

namespace {

int autocast_nesting() {
  // There is no accessor; both calls only count.
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

}  // namespace

AmbientMark::AmbientMark() : state_(AmbientState::take()), autocast_nesting_(autocast_nesting()) {}

void AmbientMark::put_back() const {
  const AmbientState now = AmbientState::take();
  AmbientState::change_control_word(now, state_);
  AmbientState::change(now, state_);
  if (now.process_ != state_.process_) ProcessSettings::change(*now.process_, *state_.process_);
  for (int level = autocast_nesting(); level > autocast_nesting_; --level) {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
}

RecordingScope::RecordingScope()
    : inference_off_(c10::InferenceMode::is_enabled()
                         ? std::optional<c10::InferenceMode>(std::in_place, /*enabled=*/false)
                         : std::nullopt),
      grad_on_(true) {}

}  // namespace reprise::libtorch
