// Random programs that do to a step whatever LibTorch lets a program do: change ambient state,
// alias and resize memory, hold raw pointers, free on other threads, fail and go on, call
// composites, and use the rest of the library.
//
// A program is a function of its seed alone, and so are its results, outside of steps and in them.
#pragma once

#include <reprise/budget.h>
#include <reprise/store.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/region/testing.h"

namespace reprise::testing {

// A matrix has 16 KiB, which is the default of BudgetOptions::min_bytes.
constexpr std::int64_t kSide = 64;

struct HostileWorld {
  HostileWorld(std::uint64_t seed, bool is_alone);

  std::int64_t number(std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
  }
  bool coin() { return number(2) == 1; }
  // One of the values so far: matrices, with history.
  at::Tensor any() { return values[static_cast<std::size_t>(number(std::ssize(values)))]; }
  void add(const at::Tensor& value) { values.push_back(value); }
  // Without history, and of any shape: compared at the end.
  void keep(const at::Tensor& value) { kept.push_back(value.detach()); }

  std::mt19937_64 random;
  Tensors leaves;
  Tensors values;
  Tensors kept;
  // Kept to the end of the program.
  std::vector<std::unique_ptr<Pin>> pins;
  std::vector<std::vector<float>> memory;
  std::vector<std::unique_ptr<MemoryBudget>> budgets;
  at::Generator generator;
  // Of the parts that have run.
  std::string told;
};

struct HostilePart {
  const char* name;
  void (*run)(HostileWorld& world);
  // Changes what the process has once, or draws from its generator.
  bool alone = false;
};

std::vector<HostilePart> state_parts();      // and aliases
std::vector<HostilePart> composite_parts();  // and the rest of the library

struct HostileOutcome {
  Tensors tensors;
  std::string told;
};

// Runs the program, in a step of `budget` if there is one. Ambient state is as ever before and
// after. Beside others on other threads (not `is_alone`) it keeps to what is its own.
HostileOutcome run_hostile(std::uint64_t seed, MemoryBudget* budget, bool is_alone = true);

}  // namespace reprise::testing
