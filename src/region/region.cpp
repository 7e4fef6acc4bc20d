// The entry points behind reprise/checkpoint.h: options, scopes, and which kind of region is run.

#include <reprise/checkpoint.h>

#include <utility>
#include <vector>

#include "core/recycling_allocator.h"
#include "libtorch/autograd/engine.h"
#include "libtorch/autograd/zero_gradients.h"
#include "libtorch/base/thread_state.h"
#include "region/frame.h"
#include "region/open_region.h"
#include "region/reentrant.h"

namespace reprise {
namespace detail {
namespace {

// Takes the tensors out of the stored arguments, also when the function throws: the region holds
// them through autograd, where they can be managed, or not at all.
class ArgumentRelease {
 public:
  explicit ArgumentRelease(RegionCall& call) : call_(call) {}
  ~ArgumentRelease() {
    call_.visit_arguments([](at::Tensor& tensor) { tensor.reset(); });
  }
  ArgumentRelease(const ArgumentRelease&) = delete;
  ArgumentRelease& operator=(const ArgumentRelease&) = delete;

 private:
  RegionCall& call_;
};

void pass_zeros(std::uint64_t since, at::TensorList arguments, region::Frame& frame,
                RegionCall& call) {
  const auto takes_gradient = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad() && !tensor.is_leaf();
  };
  std::vector<at::Tensor> results;
  call.visit_result([&](at::Tensor& tensor) {
    if (takes_gradient(tensor)) results.push_back(tensor);
  });
  auto passed = libtorch::pass_zero_gradients(since, arguments, results);
  if (!passed) return;
  std::size_t next = 0;
  call.visit_result([&](at::Tensor& tensor) {
    if (takes_gradient(tensor)) tensor = results[next++];
  });
  frame.pass_zeros(std::move(passed));
}

std::shared_ptr<region::Frame> make_frame(const CheckpointOptions& options,
                                          const std::shared_ptr<RegionCall>& call,
                                          Tensors& tensors) {
  libtorch::ensure_engine_front();
  call->visit_arguments([&](at::Tensor& tensor) { tensors.push_back(tensor); });
  return std::allocate_shared<region::Frame>(RecyclingAllocator<region::Frame>(), options, call,
                                             tensors);
}

std::shared_ptr<region::Frame> run_in_frame(const CheckpointOptions& options,
                                            const std::shared_ptr<RegionCall>& call) {
  Tensors tensors;
  const auto frame = make_frame(options, call, tensors);
  const std::uint64_t since = libtorch::place_in_graph();
  // What the function drops is to be freed while it runs.
  if (!options.skip_zero_gradients) tensors.clear();
  frame->run_forward(options);
  if (options.skip_zero_gradients) pass_zeros(since, tensors, *frame, *call);
  return frame;
}

// Runs the region by `run`. Whatever happens, the call holds no tensors of the arguments afterwards.
template <class Run>
auto run_released(RegionCall& call, Run&& run) {
  ArgumentRelease release(call);
  try {
    return run();
  } catch (...) {
    call.drop_result();
    throw;
  }
}

}  // namespace

const CheckpointOptions& default_options() {
  static const CheckpointOptions* const options = new CheckpointOptions;
  return *options;
}

void check_options(const CheckpointOptions& options) {
  for (const at::Generator& generator : options.generators) {
    if (!generator.defined()) {
      throw UsageError(
          "checkpoint(): CheckpointOptions::generators holds an undefined generator; leave it out");
    }
  }
  if (!options.generators.empty() && !options.preserve_rng_state) {
    throw UsageError(
        "checkpoint(): CheckpointOptions::generators needs preserve_rng_state=true, or their draws "
        "would not be replayed");
  }
  if (!options.reentrant) return;
  const char* refused = options.context                            ? "context"
                        : options.debug                            ? "debug=true"
                        : options.early_stop == EarlyStop::kAlways ? "early_stop=kAlways"
                        : options.allow_changed_arguments          ? "allow_changed_arguments=true"
                        : options.skip_zero_gradients              ? "skip_zero_gradients=true"
                                                                   : nullptr;
  if (refused != nullptr) {
    throw UsageError(
        std::string("checkpoint(): ") + refused +
        " is only supported with reentrant=false; a reentrant region runs its function without "
        "a graph in forward and always to its end in backward");
  }
}

void run_region(const CheckpointOptions& options, const std::shared_ptr<RegionCall>& call) {
  run_released(*call, [&] {
    if (options.reentrant) {
      region::run_reentrant(options, call);
    } else {
      run_in_frame(options, call);
    }
  });
}

}  // namespace detail

std::shared_ptr<region::Frame> region::run_in_frame(
    const CheckpointOptions& options, const std::shared_ptr<detail::RegionCall>& call) {
  return detail::run_released(*call, [&] { return detail::run_in_frame(options, call); });
}

struct region::OpenRegion::Impl {
  std::shared_ptr<Frame> frame;
  std::optional<Frame::Forward> forward;
};

region::OpenRegion::OpenRegion(const CheckpointOptions& options,
                               const std::shared_ptr<detail::RegionCall>& call)
    : impl_(new Impl) {
  const detail::ArgumentRelease release(*call);
  detail::Tensors tensors;
  impl_->frame = detail::make_frame(options, call, tensors);
  impl_->forward.emplace(*impl_->frame, options);
}

region::OpenRegion::~OpenRegion() = default;

void region::OpenRegion::end() {
  impl_->forward->end();
  impl_->forward.reset();
}

struct EarlyStopScope::Impl {
  libtorch::ThreadStateScope in_force;
};

EarlyStopScope::EarlyStopScope(EarlyStop early_stop) {
  auto state = libtorch::copy_of_current_state();
  state->early_stop = early_stop;
  impl_.reset(new Impl{libtorch::ThreadStateScope(std::move(state))});
}

EarlyStopScope::~EarlyStopScope() = default;

struct CheckpointDebugScope::Impl {
  libtorch::ThreadStateScope in_force;
};

CheckpointDebugScope::CheckpointDebugScope(std::optional<bool> enabled) {
  auto state = libtorch::copy_of_current_state();
  state->debug = enabled;
  impl_.reset(new Impl{libtorch::ThreadStateScope(std::move(state))});
}

CheckpointDebugScope::~CheckpointDebugScope() = default;

bool is_checkpointing() {
  const auto* state = libtorch::current_state();
  return state != nullptr && state->checkpointing;
}

bool is_recomputing() {
  const auto* state = libtorch::current_state();
  return state != nullptr && state->recomputing;
}

}  // namespace reprise
