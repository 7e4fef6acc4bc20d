// Taking is on the path of every region, so the switches of ten device types are read from the
// thread's dispatch keys in one look, and their dtypes only where autocast is on or the process has
// a backend for the type.
#include "libtorch/ambient_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <tuple>
#include <utility>

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

const AutocastKeys& autocast_keys() {
  static const AutocastKeys keys;
  return keys;
}

}  // namespace

std::uint64_t autocast_keys_off() {
  return c10::impl::tls_local_dispatch_key_set().excluded_.raw_repr() & autocast_keys().all;
}

AmbientState AmbientState::take() {
  static_assert(kAutocastTypes <= kMaxAutocastTypes, "more device types with autocast than room");
  AmbientState state;
  const AutocastKeys& keys = autocast_keys();
  state.autocast_off_ = autocast_keys_off();
  state.autocast_on_ = state.autocast_off_ != keys.all;
  const auto take_dtype = [&](std::size_t i) {
    const c10::DeviceType type = autocast_types()[i];
    const bool on = (state.autocast_off_ & keys.by_type[i]) == 0;
    if (on || c10::impl::hasDeviceGuardImpl(type)) {
      state.autocast_dtypes_[i] = at::autocast::get_autocast_dtype(type);
    }
  };
  // Unrolled, being on the path of every region.
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (take_dtype(i), ...);
  }(std::make_index_sequence<kAutocastTypes>());
  state.autocast_cache_ = at::autocast::is_autocast_cache_enabled();
  state.default_dtype_ = c10::get_default_dtype_as_scalartype();
  const at::Context& context = at::globalContext();
  state.deterministic_ = context.deterministicAlgorithms();
  state.deterministic_warn_only_ = context.deterministicAlgorithmsWarnOnly();
  state.fill_uninitialized_ = context.deterministicFillUninitializedMemory();
  return state;
}

void AmbientState::change(const AmbientState& from, const AmbientState& to) {
  for (std::size_t i = 0; i < kAutocastTypes; ++i) {
    const c10::DeviceType type = autocast_types()[i];
    const std::uint64_t key = autocast_keys().by_type[i];
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
  if (from.default_dtype_ != to.default_dtype_) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(to.default_dtype_));
  }
  at::Context& context = at::globalContext();
  if (from.deterministic_ != to.deterministic_ ||
      from.deterministic_warn_only_ != to.deterministic_warn_only_) {
    context.setDeterministicAlgorithms(to.deterministic_, to.deterministic_warn_only_);
  }
  if (from.fill_uninitialized_ != to.fill_uninitialized_) {
    context.setDeterministicFillUninitializedMemory(to.fill_uninitialized_);
  }
}

AmbientScope::AmbientScope(const AmbientState& state) : before_(AmbientState::take()) {
  if (before_ == state) return;
  inside_ = state;
  for (std::size_t i = 0; i < kAutocastTypes; ++i) {
    before_.autocast_dtypes_[i] = at::autocast::get_autocast_dtype(autocast_types()[i]);
  }
  changed_ = true;
  if (inside_.autocast_on_) at::autocast::increment_nesting();
  AmbientState::change(before_, inside_);
}

AmbientScope::~AmbientScope() {
  if (!changed_) return;
  if (inside_.autocast_on_ && at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
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
  AmbientState::change(AmbientState::take(), state_);
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
