// Calls of operators with random arguments, by which shape functions are compared with real
// kernels.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace reprise::testing {

// Draws tensors, mostly small, in every order of dimensions and with gaps, of one dtype a call.
class Draw {
 public:
  explicit Draw(unsigned seed)
      : random_(seed),
        dtype(pick<at::ScalarType>({at::kFloat, at::kFloat, at::kDouble, at::kBFloat16})),
        mixed(coin()) {}

  std::int64_t number(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool coin() { return number(0, 1) == 1; }
  template <class T>
  T pick(std::vector<T> from) {
    return from[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(from.size()) - 1))];
  }
  std::vector<std::int64_t> sizes(std::int64_t least, std::int64_t most) {
    std::vector<std::int64_t> drawn(static_cast<std::size_t>(number(least, most)));
    for (std::int64_t& size : drawn) size = number(1, 5);
    return drawn;
  }
  std::vector<std::int64_t> permutation(std::int64_t count) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }

  // Values in [0, 1), in any memory order.
  at::Tensor real(at::IntArrayRef sizes) { return ordered(at::rand(sizes).to(dtype)); }
  at::Tensor contiguous(at::IntArrayRef sizes) { return at::rand(sizes).to(dtype); }
  // Contiguous or channels last, as networks have them.
  at::Tensor image(at::IntArrayRef sizes) {
    const at::Tensor made = contiguous(sizes);
    if (made.dim() == 4 && coin()) return made.contiguous(at::MemoryFormat::ChannelsLast);
    if (made.dim() == 5 && coin()) return made.contiguous(at::MemoryFormat::ChannelsLast3d);
    return made;
  }
  at::Tensor whole(at::IntArrayRef sizes, std::int64_t below) {
    return at::randint(below, sizes, at::kLong);
  }
  // For kernels that have no narrow floats.
  Draw& wide() {
    if (dtype == at::kBFloat16) dtype = at::kFloat;
    return *this;
  }
  at::Tensor like(const at::Tensor& other) { return at::rand_like(other); }
  at::Tensor nothing(at::ScalarType type) { return at::empty({0}, type); }
  // The dtype that parameters have beside an input: its own, or float for narrow inputs.
  at::Tensor parameter(std::int64_t size) {
    return at::rand({size}).to(dtype == at::kBFloat16 && mixed ? at::kFloat : dtype);
  }

 private:
  at::Tensor ordered(const at::Tensor& made) {
    const std::int64_t kind = number(0, 3);
    if (made.dim() == 0 || kind == 0) return made;
    if (kind == 1) {  // every other element of something wider
      std::vector<std::int64_t> wide = made.sizes().vec();
      wide.back() *= 2;
      return at::rand(wide).to(made.scalar_type()).slice(-1, 0, wide.back(), 2);
    }
    if (kind == 2) return image_like(made);
    const std::vector<std::int64_t> order = permutation(made.dim());
    std::vector<std::int64_t> back(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    }
    return made.permute(order).contiguous().permute(back);
  }
  at::Tensor image_like(const at::Tensor& made) {
    return made.dim() == 4 ? made.contiguous(at::MemoryFormat::ChannelsLast) : made;
  }

  std::mt19937 random_;

 public:
  at::ScalarType dtype;
  bool mixed;
};

using Arguments = std::vector<c10::IValue>;
using Sizes = std::vector<std::int64_t>;
inline const c10::IValue kNone;

struct ShapeCase {
  std::string op;
  std::function<Arguments(Draw&)> arguments;
};

std::vector<ShapeCase> network_cases();
std::vector<ShapeCase> image_cases();
std::vector<ShapeCase> element_cases();
std::vector<ShapeCase> recurrent_cases();

}  // namespace reprise::testing
