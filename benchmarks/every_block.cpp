// See every_block.h; the twin is step_of() in peers/transformers.py.
#include "every_block.h"

#include <reprise/memory.h>
#include <reprise/selective.h>

#include <memory>

namespace reprise::bench {
namespace {

const CheckpointOptions& matmuls_kept() {
  static const CheckpointOptions options{.context = selective(save_matmuls())};
  return options;
}

at::Tensor call(BlockStrategy strategy, Block& block, const at::Tensor& x) {
  switch (strategy) {
    case BlockStrategy::kNonReentrant:
      return checkpoint(block, x);
    case BlockStrategy::kReentrant:
      return checkpoint(CheckpointOptions{.reentrant = true}, block, x);
    case BlockStrategy::kMatmulsKept:
      return checkpoint(matmuls_kept(), block, x);
    case BlockStrategy::kPlain:
      break;
  }
  return block->forward(x);
}

}  // namespace

double peak_megabytes(c10::Device device, const Step& step) {
  step();
  const PeakScope scope(device);
  step();
  return scope.peak_above_start().megabytes();
}

void report_peak(Session& session, const std::string& bench, const std::string& name,
                 const Step& step, const Bar& bar) {
  PeerProcess* peer = session.python_with_meter();
  Figure figure = {.bench = bench,
                   .name = "peak, " + name,
                   .ours = peak_megabytes(session.device(), step),
                   .peer = {},
                   .unit = "MB",
                   .runs = 1,
                   .spread = 0,
                   .bar = bar};
  if (peer != nullptr) figure.peer = peer->peak(bench + "/" + name) / 1e6;
  session.report(std::move(figure));
}

Step block_step(c10::Device device, int count, const BlockShape& shape, BlockStrategy strategy) {
  auto model = std::make_shared<Model>(make_model(count, shape, device));
  // A reentrant region needs an input that requires grad; the others are spared its gradient.
  model->input.set_requires_grad(strategy == BlockStrategy::kReentrant);
  return [model, strategy] {
    at::Tensor y = model->input;
    for (Block& block : model->blocks) y = call(strategy, block, y);
    y.sum().backward();
    model->drop_gradients();
    model->input.mutable_grad().reset();
  };
}

}  // namespace reprise::bench
