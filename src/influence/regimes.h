// What steps look like before anything of them is compressed: whether one is like those that were
// audited (docs/pgac.md, "Regimes").
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <vector>

namespace reprise::influence {

// Of a layer's input: the logarithms of how many elements it has, of the root of their mean square,
// and of the largest and the mean absolute element by that; and their mean by that.
using Features = std::array<double, 5>;
// Zeros for a tensor that is not of numbers in the CPU's memory.
Features features_of(const at::Tensor& input);

class Regimes {
 public:
  // A step is known where so many audited ones are near.
  static constexpr std::size_t kLeast = 3;
  static constexpr std::size_t kWindow = 64;

  struct Audited {
    std::vector<std::vector<Features>> inputs;  // of each layer: those of the step's runs
    std::vector<double> weights;  // of each layer: the logarithm of the norm of its parameters
    bool operator==(const Audited&) const = default;
  };

  // Remembers one of the inputs of a layer that are near each other.
  void add(Audited step);
  void clear() { audited_.clear(); }

  bool knows(std::size_t layer, const Features& input) const;
  // Of all layers together.
  bool knows_weights(const std::vector<double>& weights) const;

  const std::vector<Audited>& state() const { return audited_; }
  void restore(std::vector<Audited> audited) { audited_ = std::move(audited); }

 private:
  std::vector<Audited> audited_;  // from the oldest on
};

}  // namespace reprise::influence
