#include "pipeline/exchange.h"

#include <utility>

namespace reprise::pipeline {

void Exchange::wait_for_room(Way way, std::int64_t stage) {
  std::unique_lock<std::mutex> lock(mutex_);
  Queue& queue = queues_[{way, stage}];
  changed_.wait(lock, [&] { return error_ != nullptr || queue.waiting < queue.most; });
  if (error_ != nullptr) throw StepFailed();
  ++queue.waiting;
}

void Exchange::send(Way way, std::int64_t stage, std::int64_t micro_batch, std::int64_t port,
                    Parcel parcel) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_[{way, stage, micro_batch, port}] = std::move(parcel);
  }
  changed_.notify_all();
}

void Exchange::limit(Way way, std::int64_t stage, std::int64_t most) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queues_[{way, stage}].most = most;
}

Parcel Exchange::receive(Way way, std::int64_t stage, std::int64_t micro_batch, std::int64_t port) {
  std::unique_lock<std::mutex> lock(mutex_);
  const Address address{way, stage, micro_batch, port};
  changed_.wait(lock, [&] { return error_ != nullptr || waiting_.contains(address); });
  if (error_ != nullptr) throw StepFailed();
  const auto found = waiting_.find(address);
  Parcel parcel = std::move(found->second);
  waiting_.erase(found);
  if (port == 0) --queues_[{way, stage}].waiting;
  lock.unlock();
  changed_.notify_all();
  return parcel;
}

void Exchange::fail(std::exception_ptr error) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  changed_.notify_all();
}

std::exception_ptr Exchange::error() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

}  // namespace reprise::pipeline
