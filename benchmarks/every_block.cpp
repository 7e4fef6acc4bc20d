// See every_block.h; the twin is step_of() in peers/transformers.py.
#include "every_block.h"

#include <reprise/checkpoint.h>

#include <memory>

namespace reprise::bench {
namespace {

at::Tensor call(BlockStrategy strategy, Block& block, const at::Tensor& x) {
  switch (strategy) {
    case BlockStrategy::kNonReentrant:
      return checkpoint(block, x);
    case BlockStrategy::kReentrant:
      return checkpoint(CheckpointOptions{.reentrant = true}, block, x);
    case BlockStrategy::kPlain:
      break;
  }
  return block->forward(x);
}

}  // namespace

Step block_step(int count, const BlockShape& shape, BlockStrategy strategy) {
  auto model = std::make_shared<Model>(make_model(count, shape));
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
