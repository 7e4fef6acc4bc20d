// Runs a model's layers one by one and writes down what each takes (reprise/sequential.h).
#include "region/profile_chain.h"

#include <ATen/DeviceAccelerator.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <reprise/saved_tensor_hooks.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/statistics.h"
#include "libtorch/autograd/engine.h"
#include "libtorch/autograd/graph_reach.h"
#include "libtorch/autograd/zero_gradients.h"
#include "libtorch/base/state_apart.h"
#include "libtorch/base/tensor_form.h"
#include "libtorch/memory/managed_memory.h"
#include "region/layers_case.h"
#include "region/unchanged.h"

namespace reprise {
namespace {

// Of its elements; a sparse gradient has these and their indices.
Bytes own_bytes_of(const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided) return Bytes(static_cast<std::int64_t>(tensor.nbytes()));
  Bytes bytes;
  libtorch::visit_storages(tensor, [&](const c10::Storage& storage) {
    bytes += Bytes(static_cast<std::int64_t>(storage.nbytes()));
  });
  return bytes;
}

// All that a tensor keeps alive: a part of a sequence keeps the whole.
Bytes held_bytes_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return own_bytes_of(tensor);
  return Bytes(static_cast<std::int64_t>(tensor.storage().nbytes()));
}

std::vector<std::int64_t> dense_strides_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.is_non_overlapping_and_dense()) return {};
  return tensor.strides().vec();
}

bool can_require_grad(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

// Blocks of malloc differ by at most this from one run to the next: a rest that is too small for a
// chunk of its own stays with the block. An accelerator's allocator rounds alike every time.
Bytes spread_of_blocks(std::int64_t blocks, c10::Device device) {
  constexpr std::int64_t kSmallestChunk = 32;
  return device.is_cpu() ? Bytes(kSmallestChunk * blocks) : Bytes(0);
}

// One run of one stage.
struct Measured {
  double forward = 0, backward = 0;  // seconds
  ChainStage stage;
  Bytes input_gradient;
  std::vector<bool> gives_gradient;  // to which parameters
  // Of the gradient that its backward makes for its input; empty if none, or not dense.
  std::vector<std::int64_t> gradient_strides;
};

class Profiler {
 public:
  Profiler(const std::vector<TensorFunction>& functions, const std::vector<std::string>& names,
           const at::Tensor& sample, const std::vector<at::Tensor>& parameters, bool is_part)
      : functions_(functions),
        names_(names),
        sample_(sample),
        device_(sample.device()),
        is_part_(is_part) {
    for (const at::Tensor& parameter : parameters) {
      const bool is_known =
          std::any_of(parameters_.begin(), parameters_.end(),
                      [&](const at::Tensor& other) { return other.is_same(parameter); });
      if (parameter.requires_grad() && !is_known) parameters_.push_back(parameter);
    }
  }

  region::ProfiledPart run(std::int64_t repetitions) {
    if (!group()) {
      copies_input_ = true;
      functions_.front() = [first = functions_.front()](const at::Tensor& x) {
        return first(x.clone());
      };
      groups_.clear();
      group();
    }
    // Once that is not counted, which also tells the layout of the gradients that stages get.
    run_stages(1, [this](std::size_t i, std::vector<Measured>& runs) {
      if (i > 0) groups_[i - 1].gradient_strides = std::move(runs.back().gradient_strides);
    });
    Chain chain;
    std::vector<Measured> last;  // run of each stage
    run_stages(repetitions, [&](std::size_t, std::vector<Measured>& runs) {
      chain.stages.push_back(median_of(runs));
      last.push_back(std::move(runs.back()));
    });
    chain.input_gradient = last.front().input_gradient;
    share_gradients(chain, last);
    return {std::move(chain), std::move(output_of_last_), before_requires_grad_, copies_input_, {}};
  }

  // After run().
  region::ProfiledPart::Apart measure_apart() const {
    return region::profile_apart(functions_, sample_, parameters_);
  }

 private:
  struct Group {
    std::size_t begin, end;
    std::vector<std::int64_t> gradient_strides = {};  // of its output; empty: as the output's
  };

  template <class F>
  void run_stages(std::int64_t repetitions, F&& use) {
    at::Tensor input = sample_.detach();
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const bool needs_gradient =
          i == 0 ? sample_.requires_grad() : can_require_grad(input) && before_requires_grad_;
      std::vector<Measured> runs;
      for (std::int64_t k = 0; k < repetitions; ++k) {
        runs.push_back(measure(groups_[i], input, needs_gradient));
      }
      use(i, runs);
      input = std::exchange(output_, {});
    }
    output_of_last_ = std::move(input);
  }

  // A layer that writes to its input, or whose result lies on its memory, belongs to the one
  // before; at the beginning of the chain, where there is none, to the one after. False if a layer
  // writes to the input of a part, which then works on a copy.
  bool group() {
    const at::NoGradGuard no_grad;
    const at::Tensor sample = sample_.detach().clone();
    at::Tensor tensor = sample;
    for (std::size_t i = 0; i < functions_.size(); ++i) {
      const std::int64_t of_sample = detail::changes_of(sample),
                         before = detail::changes_of(tensor);
      at::Tensor result = functions_[i](tensor);
      if (detail::changes_of(sample) != of_sample) {
        if (is_part_) return false;
        throw UsageError("profile_chain: layer " + std::to_string(i) +
                         (i < names_.size() ? " (" + names_[i] + ")" : "") +
                         " writes to the chain's input, from which no region could run it again; "
                         "let it work on a copy, or run it before the chain");
      }
      if (i > 0 && detail::belongs_to_layer_before(result, tensor, before, sample)) {
        groups_.back().end = i + 1;
      } else {
        groups_.push_back({i, i + 1});
      }
      tensor = std::move(result);
    }
    return true;
  }

  at::Tensor call(const Group& group, at::Tensor tensor) const {
    for (std::size_t i = group.begin; i < group.end; ++i) tensor = functions_[i](tensor);
    return tensor;
  }

  void wait() const {
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
  }

  Measured measure(const Group& group, const at::Tensor& from, bool needs_gradient) {
    Measured measured;
    ChainStage& stage = measured.stage;
    stage.layers = static_cast<std::int64_t>(group.end - group.begin);
    for (std::size_t i = group.begin; i < group.end && i < names_.size(); ++i) {
      stage.name += (i == group.begin ? "" : " + ") + names_[i];
    }
    const at::Tensor input = from.detach().set_requires_grad(needs_gradient);
    {
      const PeakScope peak(device_);
      const at::Tensor output =
          checkpoint([&](const at::Tensor& x) { return call(group, x); }, input);
      wait();
      stage.output = held_bytes_of(output);
      stage.forward_temporaries = std::max(peak.peak_above_start() - stage.output, Bytes(0));
    }
    note_what_is_saved(stage, group, input);
    const PeakScope peak(device_);
    const Bytes before = live_bytes(device_);
    const std::int64_t blocks = allocation_count(device_);
    const std::uint64_t since = libtorch::place_in_graph();
    Stopwatch watch;
    at::Tensor output = call(group, input);
    wait();
    measured.forward = watch.elapsed().count();
    const Bytes made = live_bytes(device_) - before;
    stage.saved =
        stage.saves_output ? std::max(made, stage.output) : std::max(made - stage.output, Bytes(0));
    stage.saved += spread_of_blocks(allocation_count(device_) - blocks, device_);
    stage.keep_temporaries = std::max(peak.peak_above_start() - made, Bytes(0));
    before_requires_grad_ = output.requires_grad();
    // Nobody else holds an output in a step, but the caller that of the last stage.
    const bool is_held = group.end == functions_.size() && !is_part_;
    const at::Tensor held = is_held ? output.detach() : at::Tensor();
    if (before_requires_grad_) backward(measured, group, since, input, std::move(output));
    return measured;
  }

  // Whether autograd saves the input and the output, by their memory. The output is what the next
  // stage is measured on.
  void note_what_is_saved(ChainStage& stage, const Group& group, const at::Tensor& input) {
    std::vector<at::Tensor> saved;
    const auto note = [&saved](const at::Tensor& tensor) {
      if (tensor.defined()) saved.push_back(tensor.tensor_data());
      return tensor;
    };
    at::Tensor output;
    {
      const SavedTensorHooksScope hooks(note, [](const at::Tensor& tensor) { return tensor; });
      output = call(group, input);
    }
    const auto is_saved = [&saved](const at::Tensor& tensor) {
      return std::any_of(saved.begin(), saved.end(), [&](const at::Tensor& each) {
        return libtorch::share_memory(each, tensor);
      });
    };
    stage.needs_input = is_saved(input);
    stage.saves_output = is_saved(output);
    output_ = output.detach();
  }

  // What has the parameters' gradients before any hook on these is called: a program counts its own
  // backward calls by them.
  static std::vector<at::Tensor> before_hooks(std::vector<at::Tensor> parameters,
                                              std::uint64_t since, const at::Tensor& input,
                                              const at::Tensor& output) {
    for (const auto& [leaf, gate] : libtorch::gate_leaves(since, input, output)) {
      for (at::Tensor& parameter : parameters) {
        if (parameter.is_same(leaf)) parameter = gate;
      }
    }
    return parameters;
  }

  // As in a step: the gradient is made within backward and nobody else holds it.
  void backward(Measured& measured, const Group& group, std::uint64_t since,
                const at::Tensor& input, at::Tensor output) {
    ChainStage& stage = measured.stage;
    std::vector<at::Tensor> wanted = before_hooks(parameters_, since, input, output);
    if (input.requires_grad()) wanted.push_back(input);
    if (wanted.empty()) return;
    std::vector<std::int64_t> strides = group.gradient_strides;
    if (strides.size() != output.sizes().size()) strides = dense_strides_of(output);
    const auto make_gradient = [sizes = output.sizes().vec(), strides, options = output.options()] {
      return (strides.empty() ? at::empty(sizes, options)
                              : at::empty_strided(sizes, strides, options))
          .fill_(1);
    };
    Stopwatch watch;
    output.register_hook([&](const at::Tensor&) {
      at::Tensor gradient = make_gradient();
      stage.output_gradient = own_bytes_of(gradient);
      wait();
      watch = Stopwatch();
      return gradient;
    });
    const at::Tensor sum = output.sum();
    output.reset();
    const PeakScope peak(device_);
    const std::vector<at::Tensor> made =
        torch::autograd::grad({sum}, wanted, {at::ones_like(sum)}, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    wait();
    measured.backward = watch.elapsed().count();
    libtorch::settle_backward(device_);
    Bytes all;
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (i < parameters_.size()) measured.gives_gradient.push_back(made[i].defined());
      if (!made[i].defined()) continue;
      all += own_bytes_of(made[i]);
      const bool is_input = i >= parameters_.size();
      (is_input ? measured.input_gradient : stage.parameter_gradients) += own_bytes_of(made[i]);
      if (is_input) measured.gradient_strides = dense_strides_of(made[i]);
    }
    stage.backward_temporaries = peak.peak_above_start() - all - stage.output_gradient;
  }

  // Gradients of a parameter that several stages use stay from the last of them on; those of the
  // others are added to it.
  void share_gradients(Chain& chain, const std::vector<Measured>& last) const {
    std::vector<bool> is_there(parameters_.size());
    for (std::size_t i = chain.stages.size(); i-- > 0;) {
      ChainStage& stage = chain.stages[i];
      for (std::size_t k = 0; k < last[i].gives_gradient.size(); ++k) {
        if (!last[i].gives_gradient[k]) continue;
        if (is_there[k]) {
          stage.parameter_gradients -= own_bytes_of(parameters_[k]);
          stage.backward_temporaries += own_bytes_of(parameters_[k]);
        }
        is_there[k] = true;
      }
    }
  }

  static ChainStage median_of(const std::vector<Measured>& runs) {
    ChainStage stage = runs.back().stage;
    std::vector<double> forward, backward;
    for (const Measured& run : runs) {
      forward.push_back(run.forward);
      backward.push_back(run.backward);
    }
    stage.forward = Seconds(median(forward));
    stage.backward = Seconds(median(backward));
    return stage;
  }

  std::vector<TensorFunction> functions_;
  const std::vector<std::string>& names_;
  const at::Tensor& sample_;
  const c10::Device device_;
  const bool is_part_;
  bool copies_input_ = false;
  at::Tensor output_of_last_;
  std::vector<at::Tensor> parameters_;
  std::vector<Group> groups_;
  at::Tensor output_;
  bool before_requires_grad_ = false;
};

region::ProfiledPart profile_layers(const std::vector<TensorFunction>& functions,
                                    const std::vector<std::string>& names, const at::Tensor& sample,
                                    const std::vector<at::Tensor>& parameters,
                                    const std::vector<at::Tensor>& buffers,
                                    const decltype(detail::Layers::states)& states,
                                    const ProfileOptions& options, bool is_part,
                                    bool apart = false) {
  if (functions.empty()) {
    throw UsageError("profile_chain: the list of layers is empty; give at least one");
  }
  if (options.repetitions < 1) {
    throw UsageError("profile_chain: repetitions is " + std::to_string(options.repetitions) +
                     "; it must be at least 1");
  }
  // Regions and hooks around the profile must see nothing of it.
  const libtorch::ThreadStateScope alone(libtorch::state_without_regions());
  const region::Unchanged unchanged(sample, buffers, states);
  const at::AutoGradMode with_grad(true);
  Profiler profiler(functions, names, sample, parameters, is_part);
  region::ProfiledPart part = profiler.run(options.repetitions);
  if (apart) part.apart = profiler.measure_apart();
  return part;
}

}  // namespace

Chain profile_chain(const std::vector<TensorFunction>& functions, const at::Tensor& sample,
                    const std::vector<at::Tensor>& parameters,
                    const std::vector<at::Tensor>& buffers, const ProfileOptions& options) {
  return profile_layers(functions, {}, sample, parameters, buffers, {}, options, false).chain;
}

namespace region {

ProfiledPart profile_part(const detail::Layers& layers, const at::Tensor& sample, bool apart,
                          const ProfileOptions& options) {
  return profile_layers(layers.functions, layers.names, sample, layers.parameters, layers.buffers,
                        layers.states, options, true, apart);
}

}  // namespace region

namespace detail {

Chain profile(const Layers& layers, const at::Tensor& sample, const ProfileOptions& options) {
  std::vector<std::string> names;
  for (const std::string& name : layers.names) names.push_back(short_name(name));
  return profile_layers(layers.functions, names, sample, layers.parameters, layers.buffers,
                        layers.states, options, false)
      .chain;
}

}  // namespace detail
}  // namespace reprise
