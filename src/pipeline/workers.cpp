#include "pipeline/workers.h"

#include <ATen/ThreadLocalState.h>

#include "libtorch/base/ambient_state.h"

namespace reprise::pipeline {

Workers::Workers(std::int64_t count) {
  for (std::int64_t worker = 0; worker < count; ++worker) {
    threads_.emplace_back([this, worker] { work(worker); });
  }
}

Workers::~Workers() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(const std::function<void(std::int64_t)>& task) {
  const at::ThreadLocalState state;
  const auto ambient = libtorch::AmbientState::take();
  const std::function<void(std::int64_t)> in_state = [&](std::int64_t worker) {
    const at::ThreadLocalStateGuard in_force(state);
    const libtorch::AmbientScope settings(ambient);
    task(worker);
  };
  std::unique_lock<std::mutex> lock(mutex_);
  task_ = &in_state;
  running_ = static_cast<std::int64_t>(threads_.size());
  ++round_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return running_ == 0; });
  task_ = nullptr;
}

void Workers::work(std::int64_t worker) {
  std::uint64_t done = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || round_ != done; });
    if (ends_) return;
    done = round_;
    const auto* const task = task_;
    lock.unlock();
    (*task)(worker);
    lock.lock();
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace reprise::pipeline
