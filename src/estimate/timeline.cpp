#include "estimate/timeline.h"

#include <utility>

namespace reprise::estimate {

Timeline::Number Timeline::add(c10::StorageImpl& storage, const Memory& memory,
                               const std::shared_ptr<StorageWatcher>& self) {
  Number number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    number = static_cast<Number>(memories_.size());
    memories_.push_back(memory);
  }
  libtorch::watch(storage, self, number);
  return number;
}

void Timeline::add(Call call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back({Event::What::kCall, static_cast<std::int64_t>(calls_.size())});
  calls_.push_back(std::move(call));
}

void Timeline::end_forward() {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back({Event::What::kEndOfForward, 0});
}

void Timeline::died(Number number) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Some bytes that are not to be had end the process; what is asked for here has no bytes.
  if (is_open_) events_.push_back({Event::What::kDeath, number});
}

void Timeline::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_open_ = false;
}

std::int32_t Timeline::kind(const std::string& name) {
  const auto [at, is_new] =
      kind_numbers_.try_emplace(name, static_cast<std::int32_t>(kinds_.size()));
  if (is_new) kinds_.push_back(name);
  return at->second;
}

}  // namespace reprise::estimate
