// What a layer in the lossy tier parks, and what became of it.
#pragma once

#include <reprise/store.h>

#include <limits>
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
    std::int64_t values = 0;  // in a lossy form, or kept because the noise would have been too much
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

  // `most`: of the noise.
  explicit ParkedLog(double most = std::numeric_limits<double>::infinity()) : most_(most) {}

  // False, and nothing is noted, if the noise would be too much.
  bool add(const CompressionResult& became) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Compression route = route_of(became.form);
    const double noise =
        route == Compression::kExact ? 0 : noise_of({.spread = became.spread}, route);
    if (sums_.noise + noise > most_) return false;
    sums_.before += became.before;
    sums_.after += became.after;
    if (route == Compression::kExact) return true;
    ++sums_.values;
    sums_.spread += became.spread;
    sums_.noise += noise;
    return true;
  }
  // What was refused, as it was kept instead.
  void add_kept(const CompressionResult& kept, double spread) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sums_.before += kept.before;
    sums_.after += kept.after;
    ++sums_.values;
    sums_.spread += spread;
  }
  Sums sums() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return sums_;
  }

 private:
  const double most_;
  mutable std::mutex mutex_;
  Sums sums_;
};

// Parks in one form, and says so; exactly where the log refuses that form.
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
    CompressionResult became;
    auto parked = store_->park_as(flat, route_, &became);
    if (log_->add(became)) return parked;
    parked.reset();
    CompressionResult kept;
    parked = store_->park_as(flat, Compression::kExact, &kept);
    log_->add_kept(kept, became.spread);
    return parked;
  }

 private:
  const std::shared_ptr<CompressedStore> store_;
  const Compression route_;
  const std::shared_ptr<ParkedLog> log_;
};

}  // namespace reprise::influence
