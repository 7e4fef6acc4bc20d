// Two networks and their training steps as any program on LibTorch has them: this file knows
// nothing of reprise, and main.cpp puts its steps under a budget without a change to it.
//
// - A generative adversarial network of convolutions with batch normalization, after Radford et
//   al., arXiv:1511.06434: two networks, two optimizers, three backward passes a step, labels that
//   are filled in place, running statistics.
// - LibTorch's own torch::nn::TransformerEncoder with dropout, which learns to tell what comes
//   next.
#pragma once

#include <torch/torch.h>

#include <memory>

// What main.cpp calls: one step on a new batch, and the loss that it came to.
struct Trainer {
  virtual ~Trainer() = default;
  virtual float step() = 0;
};

struct GanTrainer : Trainer {
  using Options = torch::optim::AdamOptions;

  explicit GanTrainer(int64_t images) : images_(images) {
    using torch::nn::BatchNorm2d, torch::nn::Conv2d, torch::nn::Conv2dOptions;
    using torch::nn::ConvTranspose2d, torch::nn::ConvTranspose2dOptions;
    const auto up = [](int64_t from, int64_t to) {
      return ConvTranspose2d(ConvTranspose2dOptions(from, to, 4).stride(2).padding(1).bias(false));
    };
    const auto down = [](int64_t from, int64_t to) {
      return Conv2d(Conv2dOptions(from, to, 4).stride(2).padding(1).bias(false));
    };
    const auto same = [](int64_t channels) {
      return Conv2d(Conv2dOptions(channels, channels, 3).padding(1).bias(false));
    };
    // Noise of 64 numbers to an image of 32 by 32, and an image to one number.
    generator_ = torch::nn::Sequential(
        ConvTranspose2d(ConvTranspose2dOptions(64, 256, 4).bias(false)), BatchNorm2d(256),
        torch::nn::ReLU(), up(256, 128), BatchNorm2d(128), torch::nn::ReLU(), up(128, 64),
        BatchNorm2d(64), torch::nn::ReLU(), up(64, 1), torch::nn::Tanh());
    const torch::nn::LeakyReLU leaky(torch::nn::LeakyReLUOptions().negative_slope(0.2));
    discriminator_ = torch::nn::Sequential(
        down(1, 64), leaky, same(64), BatchNorm2d(64), leaky, down(64, 128), BatchNorm2d(128),
        leaky, down(128, 256), BatchNorm2d(256), leaky,
        Conv2d(Conv2dOptions(256, 1, 4).bias(false)), torch::nn::Flatten(), torch::nn::Sigmoid());
    const auto adam = [](torch::nn::Sequential& network) {
      return std::make_unique<torch::optim::Adam>(network->parameters(),
                                                  Options(2e-4).betas({0.5, 0.999}));
    };
    generator_optimizer_ = adam(generator_);
    discriminator_optimizer_ = adam(discriminator_);
  }

  // Bright squares on a dark ground, so that nothing has to be fetched.
  torch::Tensor real_images() const {
    torch::Tensor images = torch::full({images_, 1, 32, 32}, -1.0);
    for (int64_t i = 0; i < images_; ++i) {
      const int64_t corner = 2 + i % 12;
      images[i].slice(1, corner, corner + 16).slice(2, corner, corner + 16).fill_(1.0);
    }
    return images;
  }

  float step() override {
    discriminator_->zero_grad();
    const torch::Tensor real = real_images();
    const torch::Tensor near_one = torch::empty({images_, 1}).uniform_(0.8, 1.0);
    const torch::Tensor loss_of_real =
        torch::binary_cross_entropy(discriminator_->forward(real), near_one);
    loss_of_real.backward();

    const torch::Tensor fake = generator_->forward(torch::randn({images_, 64, 1, 1}));
    torch::Tensor labels = torch::zeros({images_, 1});
    const torch::Tensor loss_of_fake =
        torch::binary_cross_entropy(discriminator_->forward(fake.detach()), labels);
    loss_of_fake.backward();
    discriminator_optimizer_->step();

    generator_->zero_grad();
    labels.fill_(1.0);
    const torch::Tensor loss = torch::binary_cross_entropy(discriminator_->forward(fake), labels);
    loss.backward();
    generator_optimizer_->step();
    return (loss_of_real + loss_of_fake + loss).item<float>();
  }

  int64_t images_;
  torch::nn::Sequential generator_{nullptr}, discriminator_{nullptr};
  std::unique_ptr<torch::optim::Adam> generator_optimizer_, discriminator_optimizer_;
};

struct TransformerTrainer : Trainer {
  static constexpr int64_t kWidth = 128, kSymbols = 64;

  explicit TransformerTrainer(int64_t length)
      : length_(length),
        embedding_(kSymbols, kWidth),
        encoder_(torch::nn::TransformerEncoderOptions(
            torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth), 6)),
        head_(kWidth, kSymbols) {
    torch::nn::ModuleList all(embedding_, encoder_, head_);
    optimizer_ = std::make_unique<torch::optim::AdamW>(all->parameters(), 1e-3);
  }

  float step() override {
    // Eight sequences that count up from anywhere: [length, batch], as the encoder wants it.
    const torch::Tensor begin = torch::randint(kSymbols, {8});
    const torch::Tensor numbers = (torch::arange(length_ + 1).unsqueeze(1) + begin) % kSymbols;
    const torch::Tensor mask =
        torch::full({length_, length_}, -std::numeric_limits<float>::infinity()).triu(1);

    optimizer_->zero_grad();
    const torch::Tensor hidden = encoder_(embedding_(numbers.slice(0, 0, length_)), mask);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(head_(hidden).flatten(0, 1),
                                                                    numbers.slice(0, 1).flatten());
    loss.backward();
    optimizer_->step();
    return loss.item<float>();
  }

  int64_t length_;
  torch::nn::Embedding embedding_;
  torch::nn::TransformerEncoder encoder_;
  torch::nn::Linear head_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};
