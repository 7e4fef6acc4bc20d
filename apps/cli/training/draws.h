// Random numbers that are a pure function of a seed and a number: data drawn by them needs no
// generator whose state would have to be saved, and leaves LibTorch's default generators alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reprise::app {

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
std::uint64_t splitmix64(std::uint64_t state);

// The draws of one stream, one after the other. Streams of different seeds or numbers are
// unrelated.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t stream);

  std::uint64_t next();
  // Uniform in [0, bound); bound at least 1.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

 private:
  std::uint64_t state_;
};

// `taken` different numbers of 0 to count - 1, at most all of them, in random order.
std::vector<std::size_t> sample(std::size_t count, std::size_t taken, Draws& draws);

// Batches of examples, epoch by epoch: in each epoch every example once, in an order of its own.
class EpochOrder {
 public:
  // count: of examples; at least one.
  EpochOrder(std::uint64_t seed, std::size_t count) : seed_(seed), count_(count) {}

  // The examples of batch number `step`, which may go on into the next epoch.
  std::vector<std::size_t> batch(std::int64_t step, std::int64_t size);

 private:
  std::uint64_t seed_;
  std::size_t count_;
  // The last epoch's order, since batches are mostly asked for one after the other.
  std::uint64_t epoch_ = 0;
  std::vector<std::size_t> order_;
};

}  // namespace reprise::app
