// Peaks that were predicted without memory, beside those that real steps of the tests' models take.
#include <fmt/format.h>
#include <reprise/estimate.h>
#include <reprise/memory.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benches.h"
#include "benchmarks/support/session.h"
#include "models/gpt.h"
#include "models/strategy.h"
#include "tests/estimate/measured.h"
#include "tests/tape/networks/networks.h"

namespace reprise::bench {
namespace {

constexpr const char* kPredictedPeak = "predicted_peak";

void report_peak(Session& session, const std::string& name, const Estimate& estimate,
                 Bytes measured) {
  const auto predicted = static_cast<double>((estimate.peak - estimate.state()).count);
  session.report({.bench = kPredictedPeak,
                  .name = fmt::format("{}: {} measured", name, to_string(measured)),
                  .ours = predicted / static_cast<double>(measured.count),
                  .peer = {},
                  .unit = "predicted ÷ measured",
                  .runs = 1,
                  .spread = 0,
                  .bar = {.at_most = 1.02, .at_least = 0.98}});
}

void report_gpt(Session& session, bool fused, const std::string& name) {
  const double dropout = fused ? 0 : 0.1;
  models::Gpt model(models::GptOptions{.layers = 6,
                                       .width = 128,
                                       .heads = 4,
                                       .context = 64,
                                       .dropout = dropout,
                                       .fused_attention = fused});
  const c10::Device on = session.device();
  model->to(on);
  const auto tokens = at::randint(256, {4, 64}).to(on), targets = at::randint(256, {4, 64}).to(on);
  models::Layers layers;
  for (const models::GptBlock& block : model->blocks()) {
    layers.push_back([block = block.ptr()](const at::Tensor& x) { return block->forward(x); });
  }
  const auto strategy = models::Strategy::parse(name);
  const auto loss = [&] {
    return models::next_token_loss(model->head(strategy.run(layers, model->embed(tokens))),
                                   targets);
  };
  report_peak(session, fmt::format("GPT, {}, {}", fused ? "fused" : "unfused", name),
              estimate_step(*model, loss, {.device = on.type()}),
              testing::measured_peak(*model, loss, on));
}

void report_network(Session& session, const testing::NetworkKind& kind) {
  const auto real = kind.make();
  std::shared_ptr<testing::Network> unallocated;
  {
    const MetaTensorsScope meta;
    unallocated = kind.make();
  }
  report_peak(session, kind.name, estimate_step(*unallocated, [&] { return unallocated->loss(0); }),
              testing::measured_peak(*real, [&] { return real->loss(0); }));
}

}  // namespace

void predicted_peak(Session& session) {
  for (const bool fused : {true, false}) {
    for (const char* strategy : {"none", "every-block", "sqrt", "segments:2", "selective:matmul",
                                 "selective:all-but-cheap", "selective:recompute-attention"}) {
      report_gpt(session, fused, strategy);
    }
  }
  // Their data is on the CPU.
  if (!session.device().is_cpu()) return;
  for (const auto& kinds : {testing::static_networks(), testing::dynamic_networks()}) {
    for (const testing::NetworkKind& kind : kinds) {
      if (kind.reads_values) continue;
      report_network(session, kind);
    }
  }
}

}  // namespace reprise::bench
