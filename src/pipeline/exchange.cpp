#include "pipeline/exchange.h"

#include <utility>

namespace reprise::pipeline {

void Exchange::send(Way way, std::int64_t stage, std::int64_t micro_batch, std::int64_t port,
                    Tensors tensors) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_[{way, stage, micro_batch, port}] = std::move(tensors);
  }
  arrived_.notify_all();
}

Tensors Exchange::receive(Way way, std::int64_t stage, std::int64_t micro_batch,
                          std::int64_t port) {
  std::unique_lock<std::mutex> lock(mutex_);
  const Address address{way, stage, micro_batch, port};
  arrived_.wait(lock, [&] { return error_ != nullptr || waiting_.contains(address); });
  if (error_ != nullptr) throw StepFailed();
  const auto found = waiting_.find(address);
  Tensors tensors = std::move(found->second);
  waiting_.erase(found);
  return tensors;
}

void Exchange::fail(std::exception_ptr error) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  arrived_.notify_all();
}

std::exception_ptr Exchange::error() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

}  // namespace reprise::pipeline
