// Blocks of a transformer under recompute_attention(): the bytes that they keep beside the formula
// that the policy follows, and their step's time beside the plain step's.
#include <reprise/checkpoint.h>
#include <reprise/memory.h>
#include <reprise/selective.h>

#include <memory>
#include <string>
#include <vector>

#include "benches.h"
#include "benchmarks/support/race.h"
#include "models/transformer.h"

namespace reprise::bench {
namespace {

constexpr std::int64_t kAttentionBlocks = 3, kAttentionBatch = 2, kAttentionTime = 1024,
                       kAttentionWidth = 256, kAttentionHeads = 4;

struct Case {
  std::string name;
  bool fused;
  bool causal;
  double dropout;
};

class AttentionStep {
 public:
  AttentionStep(const Case& made, c10::Device device) : device_(device) {
    torch::manual_seed(0);
    for (std::int64_t i = 0; i < kAttentionBlocks; ++i) {
      blocks_.emplace_back(models::TransformerOptions{.width = kAttentionWidth,
                                                      .heads = kAttentionHeads,
                                                      .dropout = made.dropout,
                                                      .causal = made.causal,
                                                      .fused_attention = made.fused});
      blocks_.back()->to(device);
    }
    input_ = randn_on(device, {kAttentionBatch, kAttentionTime, kAttentionWidth});
  }

  // Returns what is live between forward and backward beyond what was before.
  Bytes run(bool recomputes) {
    const Bytes before = live_bytes(device_);
    at::Tensor y = input_;
    for (models::TransformerBlock& block : blocks_) {
      y = recomputes ? checkpoint(options_, block, y) : block->forward(y);
    }
    const at::Tensor loss = y.sum();
    const Bytes kept = live_bytes(device_) - before;
    loss.backward();
    for (models::TransformerBlock& block : blocks_) {
      for (at::Tensor& parameter : block->parameters()) parameter.mutable_grad().reset();
    }
    return kept;
  }

 private:
  const c10::Device device_;
  const CheckpointOptions options_{.context = selective(recompute_attention())};
  std::vector<models::TransformerBlock> blocks_;
  at::Tensor input_;
};

// Korthikanti et al., arXiv:2205.05198, table 2: without attention's core a block keeps 16 s b h
// elements (34 s b h bytes at two bytes an element) and two dropout masks at a byte an element.
double formula_of(const Case& made) {
  constexpr std::int64_t kElements = kAttentionBatch * kAttentionTime * kAttentionWidth;
  const std::int64_t masks = made.dropout > 0 ? 2 * kElements : 0;
  return Bytes(kAttentionBlocks * (16 * 4 * kElements + masks)).megabytes();
}

void report_bytes(Session& session, const std::string& name, double value, const char* unit,
                  const Bar& bar) {
  session.report({.bench = "selective_attention",
                  .name = name,
                  .ours = value,
                  .unit = unit,
                  .runs = 1,
                  .spread = 0,
                  .bar = bar});
}

void measure(Session& session, const Case& made) {
  const auto step = std::make_shared<AttentionStep>(made, session.device());
  const double plain = step->run(/*recomputes=*/false).megabytes();
  const double kept = step->run(/*recomputes=*/true).megabytes();
  report_bytes(session, made.name + ", plain keeps", plain, "MB", {});
  report_bytes(session, made.name + ", kept", kept, "MB", {});
  report_bytes(session, made.name + ", kept", kept / formula_of(made), "×formula",
               {.at_most = 1.05});

  Race race(session, "selective_attention", nullptr);
  race.add("plain", [step] { step->run(false); });
  race.add("recomputed", [step] { step->run(true); });
  race.run(Seconds(60));
  race.report(made.name + ", time", "×plain",
              [](const Round& round) { return round["recomputed"] / round["plain"]; },
              {.at_most = 1.1});
  race.report(made.name + ", plain step", "ms",
              [](const Round& round) { return 1e3 * round["plain"]; });
}

}  // namespace

void selective_attention(Session& session) {
  for (const bool fused : {false, true}) {
    for (const bool causal : {true, false}) {
      for (const double dropout : {0.1, 0.0}) {
        measure(session, {.name = std::string(fused ? "fused" : "unfused") +
                                  (causal ? ", causal" : "") + (dropout > 0 ? ", dropout" : ""),
                          .fused = fused,
                          .causal = causal,
                          .dropout = dropout});
      }
    }
  }
}

}  // namespace reprise::bench
