// What a layer in the lossy tier parks, and what became of it.
#pragma once

#include <reprise/compressed_store.h>

#include <memory>
#include <mutex>
#include <string>

#include "influence/routes.h"

namespace reprise::influence {

// Of one run of one layer. Layers may save on several threads.
class ParkedLog {
 public:
  struct Sums {
    double spread = 0, noise = 0;
    std::int64_t values = 0;  // in a lossy form
    Bytes before, after;      // of all

    Sums& operator+=(const Sums& other) {
      spread += other.spread;
      noise += other.noise;
      values += other.values;
      before += other.before;
      after += other.after;
      return *this;
    }
  };

  void add(const CompressedAs& became) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sums_.before += became.before;
    sums_.after += became.after;
    const Compression route = route_of(became.form);
    if (route == Compression::kExact) return;
    ++sums_.values;
    sums_.spread += became.spread;
    sums_.noise += noise_of({.spread = became.spread}, route);
  }
  Sums sums() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return sums_;
  }

 private:
  mutable std::mutex mutex_;
  Sums sums_;
};

// Parks in one form, and says so.
class RoutedStore final : public Store {
 public:
  RoutedStore(std::shared_ptr<CompressedStore> store, Compression route,
              std::shared_ptr<ParkedLog> log)
      : store_(std::move(store)), route_(route), log_(std::move(log)) {}

  bool exact() const override { return route_ == Compression::kExact; }
  bool takes(c10::Device device) const override { return store_->takes(device); }
  std::string name() const override { return store_->name(); }

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override {
    CompressedAs became;
    auto parked = store_->park_as(flat, route_, &became);
    log_->add(became);
    return parked;
  }

 private:
  const std::shared_ptr<CompressedStore> store_;
  const Compression route_;
  const std::shared_ptr<ParkedLog> log_;
};

}  // namespace reprise::influence
