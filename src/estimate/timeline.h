// What a step did to memory, in order: calls of operators, the storages that each made and read,
// and when storages died. Everything that an estimate says is read off one of these. Storages die
// on any thread; all else is one thread's at a time.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "libtorch/memory/watched_storage.h"

namespace reprise::estimate {

enum class Phase : std::uint8_t { kForward, kBackward, kRecomputation };

class Timeline final : public libtorch::StorageWatcher {
 public:
  using Number = std::int64_t;  // of a storage, from 0

  // What a storage that was there before the step is.
  enum class Role : std::uint8_t { kMade, kParameter, kBuffer, kInput, kGradient };

  struct Memory {
    std::int64_t bytes = 0;  // as it was asked for
    Role role = Role::kMade;
    Phase phase = Phase::kForward;  // in which it was made
    std::int32_t kind = 0;          // of `kinds`
    // It was made by a factory and nobody has put anything in it yet.
    bool is_blank = false;
  };

  struct Call {
    std::string name;
    std::vector<Number> arguments = {};
    std::vector<std::size_t> written = {};  // of them, by position
    std::vector<Number> results = {};       // new ones
    double seconds = 0, flops = 0;
    std::int64_t workspace = 0;  // bytes that its kernel has for itself while it runs
    Phase phase = Phase::kForward;
  };

  struct Event {
    enum class What : std::uint8_t { kCall, kDeath, kEndOfForward } what;
    std::int64_t subject;
  };

  // Takes note of a storage, which nobody may be watching. Its number.
  Number add(c10::StorageImpl& storage, const Memory& memory,
             const std::shared_ptr<StorageWatcher>& self);
  void add(Call call);
  void end_forward();
  void died(Number number) noexcept override;
  // The step is over: what dies from now on does so without a word.
  void close();

  Memory& memory(Number number) { return memories_[static_cast<std::size_t>(number)]; }
  const std::vector<Memory>& memories() const { return memories_; }
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<Event>& events() const { return events_; }

  std::int32_t kind(const std::string& name);
  const std::vector<std::string>& kinds() const { return kinds_; }

 private:
  std::mutex mutex_;
  bool is_open_ = true;
  std::vector<Memory> memories_;
  std::vector<Call> calls_;
  std::vector<Event> events_;
  std::vector<std::string> kinds_;
  std::unordered_map<std::string, std::int32_t> kind_numbers_;
};

}  // namespace reprise::estimate
