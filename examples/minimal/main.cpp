// The smallest complete use of reprise: a deep network that learns y = sin(3x), and whose blocks
// keep only their inputs for backward. Prints what a step needs with and without, and the loss.
#include <reprise/checkpoint.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  torch::nn::Linear first(1, 128), last(128, 1);
  torch::nn::ModuleList all(first, last);
  std::vector<torch::nn::Sequential> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.emplace_back(torch::nn::Linear(128, 128), torch::nn::Tanh(), torch::nn::Linear(128, 128),
                        torch::nn::Tanh());
    all->push_back(blocks.back());
  }
  torch::optim::AdamW optimizer(all->parameters(), 1e-3);
  const auto x = torch::linspace(-1, 1, 1024).unsqueeze(1), y = torch::sin(3 * x);

  for (int step = 0; step <= 100; ++step) {
    const bool plain =
        step == 1;  // one step without, for comparison; both come after the first gradients
    reprise::PeakScope memory;
    auto h = first(x);
    for (auto& block : blocks) h = plain ? block->forward(h) : reprise::checkpoint(block, h);
    const auto loss = torch::mse_loss(last(h), y);
    optimizer.zero_grad(/*set_to_none=*/false);
    loss.backward();
    optimizer.step();
    if (step == 1 || step % 50 == 2 || step == 100)
      std::cout << (plain ? "plain     " : "checkpoint") << " step " << step << ": loss "
                << loss.item<float>() << ", peak " << reprise::to_string(memory.peak_above_start())
                << " above the start\n";
  }
}
