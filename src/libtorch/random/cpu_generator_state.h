// The state of LibTorch's CPU generator, copied without going through a state tensor.
//
// Every region takes a snapshot and asks afterwards whether it is still current, so this is on the
// hot path: get_state() costs 450 to 800 ns and engine() copies 2.5 KB per look. Here taking costs
// one copy and a look at an untouched generator one comparison of memory.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <optional>

namespace reprise::libtorch {

// Whether `generator` is LibTorch's own CPU generator, and not one that a program derived from it
// or wrote: the state of those is known only to themselves.
bool is_plain_cpu_generator(const at::Generator& generator);

// Complete: the Mersenne twister and the halves of normal pairs that were drawn and not handed out
// yet. All functions lock the generator for their duration. It must be a plain CPU generator.
// How often this thread has set generators back through reprise (RandomState, set_device_states).
std::uint64_t count_of_restores();
void count_restore();

class CpuGeneratorState {
 public:
  explicit CpuGeneratorState(at::CPUGeneratorImpl& generator);
  void restore(at::CPUGeneratorImpl& generator) const;
  bool is_current(at::CPUGeneratorImpl& generator) const;

 private:
  at::mt19937_data_pod engine_;
  std::optional<float> float_normal_;
  std::optional<double> double_normal_;
};

}  // namespace reprise::libtorch
