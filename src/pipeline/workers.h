// The threads of a pipeline. They live as long as the pipeline, and run one task each at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace reprise::pipeline {

class Workers {
 public:
  explicit Workers(std::int64_t count);
  // Waits for tasks under way.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Runs task(worker) on every worker, with the state that LibTorch and reprise attach to the
  // calling thread, and returns when all have returned. The task must not throw. One call at a time.
  void run(const std::function<void(std::int64_t worker)>& task);

 private:
  void work(std::int64_t worker);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(std::int64_t)>* task_ = nullptr;
  std::uint64_t round_ = 0;
  std::int64_t running_ = 0;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace reprise::pipeline
