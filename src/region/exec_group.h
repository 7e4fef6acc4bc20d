// The state behind GraphExecGroup: a key under which frames keep recomputations, and what to clean
// up.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace reprise::detail {

struct GroupState {
  GroupState();

  // Distinct from the keys of backward calls, which count up from 1.
  const std::uint64_t key;

  void at_end(std::function<void()> callback);
  // Runs the callbacks, once.
  void end();

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace reprise::detail
