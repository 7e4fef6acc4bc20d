#include "region/replay_state.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <reprise/error.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "libtorch/base/thread_state.h"
#include "libtorch/memory/counting_allocator.h"
#include "libtorch/operators/draw_stream.h"
#include "libtorch/random/cpu_generator_state.h"

namespace reprise::region {
namespace {

std::mutex& replay_mutex() {
  // Never destroyed: a backward on a detached thread may outlive static destruction.
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::vector<c10::Device> devices_of_region(at::TensorList tensors) {
  std::vector<c10::Device> devices = accelerator_devices({tensors.data(), tensors.size()});
  if (devices.empty()) {
    if (const c10::DeviceType type = DefaultDeviceType::get(); type != c10::kCPU) {
      devices.emplace_back(type, at::accelerator::getDeviceIndex());
    }
  }
  return devices;
}

bool has_generator(c10::Device device) {
  try {
    RandomState::of_devices(std::span<const c10::Device>(&device, 1));
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

RandomState state_of(const at::Generator& generator) {
  return RandomState::of_generators(std::span<const at::Generator>(&generator, 1));
}

// Bytes are copied before the first write only where what the function has made itself can be told
// from what was there before: or every activation that is changed in place would be copied. Pinned
// memory comes from allocators that tell nothing, and holds activations on their way.
bool keeps_bytes(const at::Tensor& tensor, libtorch::Age age) {
  return tensor.is_cpu() && libtorch::counting_allocator_is_installed() &&
         (age == libtorch::Age::kOlder ||
          !at::globalContext().isPinnedPtr(tensor.storage().data()));
}

}  // namespace

ReplayState::ReplayState(const CheckpointOptions& options, at::TensorList tensors)
    : random_(options.preserve_rng_state),
      memory_(options.preserve_state),
      draws_(libtorch::current_draws()) {
  if (const auto* state = libtorch::current_state()) {
    statistics_ = state->statistics;
    stage_lock_ = state->replay_lock;
  }
  if (random_) {
    devices_ = devices_of_region(tensors);
    generators_ = options.generators;
    try {
      default_state_ = take_default();
    } catch (const UsageError&) {
      // Some backends have tensors and no generators: there is nothing to replay on those.
      std::erase_if(devices_, [](c10::Device device) { return !has_generator(device); });
      default_state_ = take_default();
    }
    own_state_ = take_own();
    restores_before_ = libtorch::count_of_restores();
  }
  if (options.preserve_ambient_state) ambient_ = libtorch::AmbientState::take();
}

RandomState ReplayState::take_default() const { return RandomState::of_devices(devices_); }

RandomState ReplayState::take_own() const {
  return generators_.empty() ? RandomState() : RandomState::of_generators(generators_);
}

bool ReplayState::covers(const at::Generator& generator) const {
  const auto is_default_of = [&](c10::Device device) {
    return at::globalContext().defaultGenerator(device) == generator;
  };
  return is_default_of(c10::kCPU) ||
         std::find(generators_.begin(), generators_.end(), generator) != generators_.end() ||
         std::any_of(devices_.begin(), devices_.end(), is_default_of);
}

bool ReplayState::is_from_inside(const at::Generator& generator) const {
  const auto draws = libtorch::current_draws();
  return draws != nullptr && draws != draws_ && draws->owns(generator);
}

ReplayState::Recording::Recording(std::shared_ptr<ReplayState> replay,
                                  libtorch::ThreadState& state) {
  if (!replay->random_ && !replay->memory_) return;
  replay_ = replay.get();
  if (replay_->memory_) replay_->mark_ = fresh_.emplace().mark();
  replay_->recording_ = true;
  effects_.emplace(state, std::move(replay));
}

ReplayState::Recording::~Recording() {
  if (replay_ == nullptr) return;
  // LibTorch may have carried the thread's state to work that goes on.
  replay_->recording_ = false;
}

bool ReplayState::before_write(const at::Tensor& tensor) {
  had_effects_.store(true, std::memory_order_relaxed);
  if (!memory_ || !recording_) return false;
  const libtorch::Age age = mark_.age_of(*tensor.storage().unsafeGetStorageImpl());
  if (age == libtorch::Age::kFresh) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  if (before_ == nullptr) before_ = std::make_unique<libtorch::KeptMemory>();
  if (keeps_bytes(tensor, age)) {
    before_->keep(tensor, saves_);
  } else {
    before_->keep_version(tensor);
  }
  return false;
}

bool ReplayState::before_draw(const at::Generator& generator) {
  if (is_from_inside(generator)) return false;
  had_effects_.store(true, std::memory_order_relaxed);
  if (!random_ || !recording_ || covers(generator)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const Noted& noted) { return noted.generator == generator; };
  if (std::none_of(noted_.begin(), noted_.end(), is_it)) {
    noted_.push_back({generator, state_of(generator)});
  }
  return false;
}

void ReplayState::end_forward() {
  if (before_ != nullptr) {
    before_->drop_dead();
    if (before_->empty()) before_.reset();
  }
  if (!random_) return;
  // A function that set generators itself may have drawn and covered it up.
  if (libtorch::count_of_restores() != restores_before_) return;
  if (default_state_.is_current()) default_state_ = {};
  if (!own_state_.empty() && own_state_.is_current()) own_state_ = {};
}

bool ReplayState::turns_memory_back() const {
  if (!had_effects_) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return before_ != nullptr;
}

bool ReplayState::turns_back() const {
  if (!default_state_.empty() || !own_state_.empty()) return true;
  if (!had_effects_) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return !noted_.empty() || before_ != nullptr;
}

libtorch::ThreadState::ReplayLock ReplayState::lock_kind() const {
  using Lock = libtorch::ThreadState::ReplayLock;
  if (!turns_back()) return Lock::kNone;
  if (stage_lock_ == nullptr || !default_state_.empty() || !own_state_.empty()) {
    return Lock::kOfProcess;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return noted_.empty() ? Lock::kOfStage : Lock::kOfProcess;
}

void ReplayState::Undo::turn_back(const ReplayState& state) {
  std::lock_guard<std::mutex> lock(state.mutex_);
  for (const Noted& noted : state.noted_) {
    noted_.push_back({noted.generator, state_of(noted.generator)});
    noted.state.restore();
  }
  if (state.before_ == nullptr) return;
  before_ = std::make_unique<libtorch::KeptMemory>();
  before_->keep_same(*state.before_);
  state.before_->put_back();
}

void ReplayState::Undo::put_back() {
  state_ = nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto noted = std::move(noted_);
  const auto before = std::move(before_);
  const auto only_here = std::move(only_here_);
  if (before != nullptr) before->put_back();
  if (only_here != nullptr) only_here->put_back();
  for (const Noted& generator : noted) {
    if (!generator.state.is_current()) generator.state.restore();
  }
}

bool ReplayState::Undo::before_write(const at::Tensor& tensor) {
  using libtorch::Age;
  const ReplayState* state = state_;
  if (state == nullptr || !state->memory_) return false;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const Age age = mark_.age_of(storage);
  if (age == Age::kFresh) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  // Of unknown age is undone what forward wrote to as well: that was there before, or is gone.
  // Anything else may be what this run has just made.
  const bool known = before_ != nullptr && before_->touch(storage);
  if (age == Age::kUnknown && !known) return false;
  auto& kept = known ? before_ : only_here_;
  if (kept == nullptr) kept = std::make_unique<libtorch::KeptMemory>();
  kept->keep(tensor);
  return true;
}

bool ReplayState::Undo::takes_back(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  return only_here_ != nullptr && tensor.has_storage() &&
         only_here_->keeps(*tensor.storage().unsafeGetStorageImpl());
}

bool ReplayState::Undo::before_draw(const at::Generator& generator) {
  const ReplayState* state = state_;
  if (state == nullptr || !state->random_ || state->covers(generator) ||
      state->is_from_inside(generator)) {
    return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const Noted& noted) { return noted.generator == generator; };
  if (std::none_of(noted_.begin(), noted_.end(), is_it)) {
    noted_.push_back({generator, state_of(generator)});
  }
  return true;
}

// A function that only computed in forward does so again.
ReplayState::Scope::Scope(ReplayState& state, Undo& undo)
    : state_(state),
      undo_(undo),
      undoes_(state.had_effects_ || state.turns_back() || state.statistics_ != nullptr) {
  if (state.ambient_) ambient_.emplace(*state.ambient_);
}

// Where this throws, the destructor puts back.
void ReplayState::Scope::begin(std::shared_ptr<Undo> undo, libtorch::ThreadState& thread) {
  using Lock = libtorch::ThreadState::ReplayLock;
  const Lock kind = state_.lock_kind();
  // Without the lock nothing may be touched, or another thread's replay would be disturbed.
  if (kind > thread.replaying) {
    lock_ =
        std::unique_lock<std::mutex>(kind == Lock::kOfStage ? *state_.stage_lock_ : replay_mutex());
    thread.replaying = kind;
  }
  thread.replay_lock = state_.stage_lock_;
  if (kind != Lock::kNone) turn_back();
  if (state_.memory_) undo_.mark_ = fresh_.emplace().mark();
  undo_.state_ = &state_;
  thread.draws = state_.draws_;
  thread.statistics = state_.statistics_;
  effects_.emplace(thread, std::move(undo));
}

ReplayState::Scope::~Scope() {
  try {
    if (undoes_) put_back();
  } catch (const std::exception& error) {
    TORCH_WARN("checkpoint(): the state before a recomputation could not be restored: ",
               error.what());
  }
}

bool ReplayState::Scope::was_wrong(std::size_t saves) {
  if (undo_.before_ == nullptr) return false;
  std::lock_guard<std::mutex> lock(state_.mutex_);
  if (state_.before_ == nullptr || !state_.before_->drop_untouched(*undo_.before_, saves)) {
    return false;
  }
  if (state_.before_->empty()) state_.before_.reset();
  return true;
}

void ReplayState::Scope::turn_back() {
  if (!state_.default_state_.empty()) default_before_ = state_.take_default();
  if (!state_.own_state_.empty()) own_before_ = state_.take_own();
  if (!state_.default_state_.empty()) state_.default_state_.restore();
  if (!state_.own_state_.empty()) state_.own_state_.restore();
  undo_.turn_back(state_);
}

void ReplayState::Scope::put_back() {
  // As much as can be, whatever fails.
  std::exception_ptr first;
  const auto attempt = [&](const auto& step) {
    try {
      step();
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  };
  const auto restore = [](const RandomState& before) {
    if (!before.empty() && !before.is_current()) before.restore();
  };
  attempt([&] { undo_.put_back(); });
  attempt([&] { restore(own_before_); });
  attempt([&] { restore(default_before_); });
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace reprise::region
