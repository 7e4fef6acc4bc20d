// Each block's activations get its name; numbers of blocks are left out of kinds.
#include "apps/cli/commands/estimated_model.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <reprise/selective.h>

namespace reprise::app {

EstimatedModel::EstimatedModel(const EstimateModelOptions& options)
    : options_(options), estimate_options_(estimate_options(options)) {
  {
    const MetaTensorsScope unallocated;
    model_ = models::Gpt(options.gpt);
    if (options.dtype == "bf16") model_->to(at::kBFloat16);
  }
  for (const models::GptBlock& block : model_->blocks()) {
    layers_.push_back([block = block.ptr()](const at::Tensor& x) {
      const NamedScope name("block");
      return block->forward(x);
    });
  }
}

Estimate EstimatedModel::estimate(const std::string& strategy_name, std::int64_t batch,
                                  std::int64_t shards) {
  const models::Strategy strategy = models::Strategy::parse(strategy_name);
  const auto in_vocabulary = at::TensorOptions(at::kLong).device(at::kMeta);
  const at::Tensor tokens = at::empty({batch, options_.gpt.context}, in_vocabulary);
  const at::Tensor targets = at::empty_like(tokens);
  const auto loss = [&] {
    at::Tensor x;
    {
      const NamedScope name("embedding");
      x = model_->embed(tokens);
    }
    x = strategy.run(layers_, x);
    const NamedScope name("head");
    return models::next_token_loss(model_->head(x), targets);
  };
  EstimateOptions options = estimate_options_;
  options.shards = shards;
  return estimate_step(*model_, loss, options);
}

Facts EstimatedModel::facts() const {
  const models::GptOptions& gpt = options_.gpt;
  Facts facts;
  facts.add("model",
            fmt::format("GPT, {} layers of width {}, {} heads, context {}: {} parameters",
                        gpt.layers, gpt.width, gpt.heads, gpt.context,
                        format_count(static_cast<double>(models::parameter_count(*model_)))));
  facts.add("step", fmt::format("{} on {}, batch {}, {} attention, dropout {}", options_.dtype,
                                options_.device, options_.batch, options_.attention, gpt.dropout));
  facts.add("machine", to_text(estimate_options_.machine));
  if (options_.shards > 1) {
    facts.add("state", fmt::format("one of {} parts of it on each device", options_.shards));
  }
  return facts;
}

}  // namespace reprise::app
