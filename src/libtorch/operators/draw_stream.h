// Random draws of a stretch of code from a stream of its own, whatever other threads draw.
//
// LibTorch has one default generator a device for the whole process, so two threads that draw from
// it at once get numbers that depend on chance. Inside a DrawStreamScope, operators that would draw
// from a default generator draw from the stream's generators instead: they are given them as their
// argument. Kernels that take none (native_dropout) are given them inside. On accelerators, where a
// kernel's draws cannot be seen, the default generator has the stream's state for the call.
//
// Regions inside see a generator that the call was given, and replay it as they do any other, under
// the stream that was in force when they began.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "libtorch/base/thread_state.h"

namespace reprise::libtorch {

struct OperatorFacts;

class DrawStream {
 public:
  // The first one registers the operator interceptor, with its rule for threads.
  DrawStream();

  // The next draw is the first of the stream with this seed.
  void start(std::uint64_t seed);
  // The stream's own, of the device's kind.
  at::Generator generator_for(c10::Device device);
  bool owns(const at::Generator& generator) const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t seed_ = 0;
  std::vector<std::pair<c10::Device, at::Generator>> generators_;
};

class DrawStreamScope {
 public:
  explicit DrawStreamScope(std::shared_ptr<DrawStream> stream);

 private:
  ThreadStateScope in_force_;
  c10::impl::IncludeDispatchKeyGuard included_;
};

// The stream in force on this thread; null if there is none.
std::shared_ptr<DrawStream> current_draws();

// Runs `call`, which makes an operator's call with the arguments on `stack`, so that it draws from
// `stream`. The kernel of operator_effects.cpp calls this. A generator that the caller gave is left.
void draw_from(DrawStream& stream, const OperatorFacts& facts, std::vector<c10::IValue>& stack,
               std::size_t arguments, const std::function<void()>& call);

}  // namespace reprise::libtorch
