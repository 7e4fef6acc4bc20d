// Building, one forward and backward, and the hash that tells whether two runs are equal.
#include "apps/cli/training/network.h"

#define XXH_INLINE_ALL
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <reprise/budget.h>
#include <xxhash.h>

#include "apps/cli/training/device.h"

namespace reprise::app {

namespace {

models::Gpt build(const RunOptions& options, c10::Device device) {
  at::manual_seed(static_cast<std::uint64_t>(options.seed));
  models::Gpt model(options.gpt);
  model->to(device);
  return model;
}

}  // namespace

Network::Network(const RunOptions& options, c10::Device device)
    : options_(options), device_(device), model_(build(options, device)) {
  for (const models::GptBlock& block : model_->blocks()) {
    layers_.push_back([block = block.ptr()](const at::Tensor& x) { return block->forward(x); });
  }
}

at::Tensor Network::loss(const Batch& batch, const models::Strategy& strategy) {
  const Autocast autocast(device_, options_.dtype);
  const ContextScope around = strategy.around_forward();
  const at::Tensor x = strategy.run(layers_, model_->embed(batch.tokens), region_options(options_));
  return models::next_token_loss(model_->head(x), batch.targets);
}

at::Tensor Network::run_backward(const Batch& batch, const models::Strategy& strategy,
                                 double scale) {
  const at::Tensor mean = loss(batch, strategy);
  (scale == 1.0 ? mean : mean * scale).backward();
  return mean.detach();
}

std::vector<TensorFunction> Network::chain(const at::Tensor& targets) {
  ModelParts of_step = parts();
  of_step.blocks.push_back(
      [loss = of_step.loss, targets](const at::Tensor& x) { return loss(x, targets); });
  return of_step.blocks;
}

at::Tensor Network::embed(const at::Tensor& tokens) {
  const Autocast autocast(device_, options_.dtype);
  return model_->embed(tokens);
}

at::Tensor Network::run_backward(const Batch& batch, const Schedule& schedule) {
  const at::Tensor mean = checkpoint_sequential(chain(batch.targets), schedule, embed(batch.tokens),
                                                region_options(options_));
  mean.backward();
  return mean.detach();
}

ModelParts Network::parts() {
  ModelParts parts{.model = model_.get(),
                   .first =
                       [model = model_, device = device_,
                        dtype = options_.dtype](const at::Tensor& tokens) mutable {
                         const Autocast autocast(device, dtype);
                         return model->embed(tokens);
                       },
                   .block_names = names_of_blocks(*model_, model_->blocks()),
                   .loss =
                       [model = model_, device = device_, dtype = options_.dtype](
                           const at::Tensor& last, const at::Tensor& targets) mutable {
                         const Autocast autocast(device, dtype);
                         return models::next_token_loss(model->head(last), targets);
                       }};
  for (const models::Layer& layer : layers_) {
    parts.blocks.push_back([layer, device = device_, dtype = options_.dtype](const at::Tensor& x) {
      const Autocast autocast(device, dtype);
      return layer(x);
    });
  }
  return parts;
}

at::Tensor Network::logits(const at::Tensor& tokens) {
  const c10::NoGradGuard no_grad;
  const Autocast autocast(device_, options_.dtype);
  return model_->forward(tokens).to(at::kFloat);
}

void Network::wrap_layers(const std::function<models::Layer(models::Layer)>& wrapper) {
  for (models::Layer& layer : layers_) layer = wrapper(std::move(layer));
}

void Network::describe(Facts& facts) const {
  const models::GptOptions& gpt = options_.gpt;
  facts.add(
      "model",
      fmt::format("GPT, {} layers of width {}, {} heads, context {}{}: {} parameters", gpt.layers,
                  gpt.width, gpt.heads, gpt.context, gpt.tied_head ? "" : ", a head of its own",
                  format_count(static_cast<double>(models::parameter_count(*model_)))));
  facts.add("attention", fmt::format("{}, dropout {}", options_.attention, gpt.dropout));
}

std::string describe_machine(const RunOptions& options, c10::Device device) {
  const int threads = at::get_num_threads();
  return fmt::format("{} on {} with {} thread{}", options.dtype, device.str(), threads,
                     threads == 1 ? "" : "s");
}

std::uint64_t hash_parameters(const torch::nn::Module& model) {
  std::uint64_t hash = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor bytes = parameter.detach().cpu().contiguous();
    const Pin in_place(bytes);
    hash = XXH3_64bits_withSeed(bytes.const_data_ptr(), bytes.nbytes(), hash);
  }
  return hash;
}

}  // namespace reprise::app
