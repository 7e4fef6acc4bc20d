#include "influence/score.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/lane_noise.h"
#include "libtorch/memory/managed_memory.h"

namespace reprise::influence {
namespace {

// What is summed in the element's own precision, and the unit of subsampling.
constexpr std::int64_t kBlock = 64;
// What one thread takes at a time; fixed, so that the sum does not depend on their number.
constexpr std::int64_t kBlocksPerChunk = 1024;
// Elements at a time where kernels of LibTorch do the work: temporaries stay small.
constexpr std::int64_t kElementsPerPiece = std::int64_t{1} << 18;

template <class Sum, class T>
Sum block_sum(const T* gradient, const T* activation, std::int64_t count) {
  // Several sums side by side, for the compiler to keep in one register.
  constexpr std::int64_t kLanes = 8;
  std::array<Sum, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t k = 0; k < kLanes; ++k) {
      const Sum product = static_cast<Sum>(gradient[i + k]) * static_cast<Sum>(activation[i + k]);
      lanes[static_cast<std::size_t>(k)] += product * product;
    }
  }
  for (; i < count; ++i) {
    const Sum product = static_cast<Sum>(gradient[i]) * static_cast<Sum>(activation[i]);
    lanes[0] += product * product;
  }
  Sum sum = 0;
  for (const Sum lane : lanes) sum += lane;
  return sum;
}

// Which of the blocks of a stride is looked at: as if drawn, for activations repeat themselves from
// row to row.
std::int64_t drawn_block(std::int64_t stratum, std::int64_t blocks) {
  return static_cast<std::int64_t>(mixed(static_cast<std::uint64_t>(stratum)) %
                                   static_cast<std::uint64_t>(blocks));
}

// Of blocks' sums.
struct Moments {
  double sum = 0, squares = 0;
  std::int64_t elements = 0, blocks = 0;

  void add(double block, std::int64_t size) {
    sum += block;
    squares += block * block;
    elements += size;
    ++blocks;
  }
  void add(const Moments& other) {
    sum += other.sum;
    squares += other.squares;
    elements += other.elements;
    blocks += other.blocks;
  }
};

template <class Sum, class T>
Moments moments_of(const T* gradient, const T* activation, std::int64_t count,
                   std::int64_t stride) {
  const std::int64_t every = kBlock * stride;
  const std::int64_t blocks = (count + every - 1) / every;
  std::vector<Moments> chunks(
      static_cast<std::size_t>((blocks + kBlocksPerChunk - 1) / kBlocksPerChunk));
  at::parallel_for(0, std::ssize(chunks), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      Moments moments;
      const std::int64_t last = std::min(blocks, (chunk + 1) * kBlocksPerChunk);
      for (std::int64_t block = chunk * kBlocksPerChunk; block < last; ++block) {
        const std::int64_t begin = block * every;
        const std::int64_t left = (std::min(every, count - begin) + kBlock - 1) / kBlock;
        const std::int64_t at = begin + drawn_block(block, left) * kBlock;
        const std::int64_t size = std::min(kBlock, count - at);
        moments.add(block_sum<Sum>(gradient + at, activation + at, size), size);
      }
      chunks[static_cast<std::size_t>(chunk)] = moments;
    }
  });
  Moments all;
  for (const Moments& chunk : chunks) all.add(chunk);
  return all;
}

// One block drawn of each stride.
SquareSum estimate(const Moments& moments, std::int64_t count, std::int64_t stride) {
  if (stride == 1 || moments.blocks == 0) return {moments.sum, 0};
  const auto blocks = static_cast<double>(moments.blocks);
  const double share = static_cast<double>(moments.elements) / static_cast<double>(count);
  SquareSum result{moments.sum / share, 0};
  if (moments.blocks > 1) {
    const double mean = moments.sum / blocks;
    const double spread = std::max(moments.squares / blocks - mean * mean, 0.0);
    result.variance = blocks * blocks / (blocks - 1) * spread * (1 - share) / (share * share);
  }
  return result;
}

// Whether single precision has lost something: too large, or so small that squares vanish.
bool is_doubtful(double sum, std::int64_t elements) {
  constexpr double kLeastSquare = 1e-34;
  return !std::isfinite(sum) || sum < static_cast<double>(elements) * kLeastSquare;
}

template <class T>
SquareSum sum_dense(const at::Tensor& gradient, const at::Tensor& activation, std::int64_t stride) {
  // Of fewer blocks no spread between them can be told.
  constexpr std::int64_t kLeastBlocks = 16;
  if (gradient.numel() < kLeastBlocks * kBlock * stride) stride = 1;
  const T* const g = gradient.const_data_ptr<T>();
  const T* const a = activation.const_data_ptr<T>();
  const std::int64_t count = gradient.numel();
  if constexpr (!std::is_same_v<T, double>) {
    const Moments moments = moments_of<float>(g, a, count, stride);
    if (!is_doubtful(moments.sum, moments.elements)) return estimate(moments, count, stride);
  }
  return estimate(moments_of<double>(g, a, count, stride), count, stride);
}

// Elements in whatever order memory has them.
template <class T>
SquareSum sum_scattered(const at::Tensor& gradient, const at::Tensor& activation) {
  auto iterator = at::TensorIteratorConfig()
                      .set_check_mem_overlap(false)
                      .add_const_input(gradient)
                      .add_const_input(activation)
                      .build();
  double sum = 0;
  using Wide = std::conditional_t<c10::is_complex<T>::value, c10::complex<double>, double>;
  // The form that TensorIterator calls: two dimensions at a time.
  const auto add = [&sum](char** data, const std::int64_t* strides, std::int64_t columns,
                          std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const char* g = data[0] + i * strides[2];
      const char* a = data[1] + i * strides[3];
      for (std::int64_t k = 0; k < columns; ++k, g += strides[0], a += strides[1]) {
        const Wide product = static_cast<Wide>(*reinterpret_cast<const T*>(g)) *
                             static_cast<Wide>(*reinterpret_cast<const T*>(a));
        if constexpr (c10::is_complex<T>::value) {
          sum += product.real() * product.real() + product.imag() * product.imag();
        } else {
          sum += product * product;
        }
      }
    }
  };
  iterator.serial_for_each(add, {0, iterator.numel()});
  return {sum, 0};
}

bool are_alike_in_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_non_overlapping_and_dense() && a.strides() == b.strides();
}

}  // namespace

// Conjugates and negatives that are not carried out yet have the same absolute values.
SquareSum square_sum(const at::Tensor& g, const at::Tensor& a, std::int64_t stride) {
  // Another thread may make room in a budget meanwhile.
  const libtorch::HeldMemory held_g(g), held_a(a);
  SquareSum result;
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(at::kHalf, at::kBFloat16, g.scalar_type(),
                                              "influence", [&] {
                                                if constexpr (!c10::is_complex<scalar_t>::value) {
                                                  if (are_alike_in_memory(g, a)) {
                                                    result = sum_dense<scalar_t>(g, a, stride);
                                                    return;
                                                  }
                                                }
                                                result = sum_scattered<scalar_t>(g, a);
                                              });
  return result;
}

at::Tensor square_sum_on_device(const at::Tensor& gradient, const at::Tensor& activation) {
  const at::Tensor g = gradient.reshape(-1), a = activation.reshape(-1);
  const at::ScalarType wide = g.is_complex() ? at::kComplexFloat : at::kFloat;
  const bool is_double = g.scalar_type() == at::kDouble || g.scalar_type() == at::kComplexDouble;
  at::Tensor sum = at::zeros({}, g.options().dtype(is_double ? at::kDouble : at::kFloat));
  for (std::int64_t at = 0; at < g.numel(); at += kElementsPerPiece) {
    const std::int64_t size = std::min(kElementsPerPiece, g.numel() - at);
    at::Tensor left = g.narrow(0, at, size), right = a.narrow(0, at, size);
    if (!is_double) left = left.to(wide), right = right.to(wide);
    sum.add_((left * right).abs().square_().sum());
  }
  return sum;
}

}  // namespace reprise::influence
