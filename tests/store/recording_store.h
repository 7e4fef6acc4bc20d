// A store that writes down what is asked of it, and keeps copies of its own.
#pragma once

#include <reprise/store.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/region/testing.h"

namespace reprise::testing {

class RecordingStore final : public Store {
 public:
  bool exact() const override { return true; }
  bool takes(c10::Device) const override { return true; }
  std::string name() const override { return "recording store"; }

  // "park 0", "prefetch 0", "load 0", "drop 0": with the number of the value, in order of parking.
  std::vector<std::string> take_log() {
    const std::lock_guard lock(mutex_);
    return std::exchange(log_, {});
  }
  int count(const std::string& call) {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (const std::string& entry : log_) found += entry.starts_with(call) ? 1 : 0;
    return found;
  }

  // How many prefetched values the store has room for.
  std::atomic<int> room = 0;

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override {
    return std::make_unique<Copy>(*this, parked_++, flat);
  }

 private:
  class Copy final : public ParkedTensor {
   public:
    Copy(RecordingStore& store, int number, const at::Tensor& flat)
        : store_(store), number_(std::to_string(number)), copy_(flat.clone()) {
      store_.note("park " + number_);
    }
    ~Copy() override { store_.note("drop " + number_); }
    at::Tensor load() override {
      store_.note("load " + number_);
      if (std::exchange(ahead_, false)) ++store_.room;
      return copy_.clone();
    }
    bool prefetch() override {
      if (ahead_) return true;
      if (store_.room == 0) return false;
      --store_.room;
      ahead_ = true;
      store_.note("prefetch " + number_);
      return true;
    }
    Bytes bytes() const override { return Bytes(static_cast<std::int64_t>(copy_.nbytes())); }

   private:
    RecordingStore& store_;
    const std::string number_;
    const at::Tensor copy_;
    bool ahead_ = false;
  };

  void note(const std::string& entry) {
    const std::lock_guard lock(mutex_);
    log_.push_back(entry);
  }

  std::atomic<int> parked_ = 0;
  std::mutex mutex_;
  std::vector<std::string> log_;
};

}  // namespace reprise::testing
