// Weights of no meaning at all, over many powers: what a step does must not depend on them.
#pragma once

#include <reprise/budget_extensions.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>

namespace reprise::testing {

class RandomWeights final : public ValueWeights {
 public:
  explicit RandomWeights(std::uint64_t seed) : random_(seed) {}
  std::unique_ptr<Step> step() override { return std::make_unique<OneStep>(*this); }

  std::atomic<std::int64_t> calls{0}, looks{0};

 private:
  struct OneStep final : Step {
    explicit OneStep(RandomWeights& of) : all(of) {}
    // Under the lock of all budgets.
    double weight(const Call& /*call*/) override {
      ++all.calls;
      return std::pow(10.0, std::uniform_real_distribution<double>(-30, 30)(all.random_));
    }
    void gradient(const Call& /*call*/, const at::Tensor& /*value*/,
                  const at::Tensor& /*gradient*/) override {
      ++all.looks;
    }
    RandomWeights& all;
  };
  std::mt19937_64 random_;
};

}  // namespace reprise::testing
