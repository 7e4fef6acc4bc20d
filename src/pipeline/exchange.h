// The stages of one step send each other outputs, gradients and skips through an exchange. Whoever receives waits until the tensors are there, or until the step has failed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>

#include "pipeline/micro_batches.h"

namespace reprise::pipeline {

enum class Way { kForward, kBackward };

// Ends the work of the other workers once one of them has failed.
class StepFailed final : public std::exception {
 public:
  const char* what() const noexcept override { return "another stage of the pipeline has failed"; }
};

class Exchange {
 public:
  // To that stage. `port` 0 is what the stage beside it sends, the others are skips.
  void send(Way way, std::int64_t stage, std::int64_t micro_batch, std::int64_t port,
            Tensors tensors);
  // Throws StepFailed after fail().
  Tensors receive(Way way, std::int64_t stage, std::int64_t micro_batch, std::int64_t port);

  // The first error is kept.
  void fail(std::exception_ptr error);
  std::exception_ptr error() const;

 private:
  using Address = std::tuple<Way, std::int64_t, std::int64_t, std::int64_t>;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Address, Tensors> waiting_;
  std::exception_ptr error_;
};

}  // namespace reprise::pipeline
