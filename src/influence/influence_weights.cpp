// Averages of operator calls' influence, as weights of what they make
// (pgac.h).
//
// A call is found again by its kind and by its place among the calls of that kind, and not by its
// number in the step: a call more or less (a branch that is taken now and then, a longer sequence)
// then leaves the averages of all calls of other kinds where they belong.
#include "reprise/experimental/pgac.h"

#include <reprise/error.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "influence/collection.h"

namespace reprise {
namespace influence {
namespace {

constexpr std::int64_t kStepsRemembered = 64;

void check(const InfluenceWeightsOptions& options) {
  constexpr double kLeastMinWeight = 1e-6;
  const auto refuse = [](const char* what, const auto& value, const char* bounds) {
    std::ostringstream text;
    text << "influence_weights(): " << what << " is " << value << "; it must be " << bounds;
    throw UsageError(text.str());
  };
  if (!(options.alpha >= 0 && options.alpha < 1)) {
    refuse("alpha", options.alpha, "at least 0, which keeps the last score alone, and below 1");
  }
  if (!(options.min_weight >= kLeastMinWeight && options.min_weight <= 1)) {
    refuse("min_weight", options.min_weight,
           "from 1e-6 to 1: the least weight, where the mean is 1");
  }
  if (options.stride < 1) {
    refuse("stride", options.stride, "at least 1, at which every element is looked at");
  }
}

struct CallId {
  std::uint64_t kind;
  std::int64_t place;  // among those of the kind in the step
  friend auto operator<=>(const CallId&, const CallId&) = default;
};

// What all steps share.
class Averages {
 public:
  explicit Averages(const InfluenceWeightsOptions& options) : options_(options) {}

  const InfluenceWeightsOptions& options() const { return options_; }

  struct Weighed {
    std::int64_t number;  // of the call, for good
    double weight;
  };
  Weighed weigh(const CallId& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [found, is_new] = calls_.try_emplace(call);
    Known& known = found->second;
    if (is_new) by_number_[known.number = next_++] = found;
    known.last_step = steps_;
    const bool is_known = known.average && mean_ > 0;
    return {known.number, is_known ? std::max(*known.average / mean_, options_.min_weight) : 1};
  }

  void take(const std::vector<InfluenceScore>& scores) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const InfluenceScore& score : scores) {
      const auto found = by_number_.find(score.layer);
      if (found == by_number_.end() || score.gradients == 0) continue;
      std::optional<double>& average = found->second->second.average;
      average =
          average ? options_.alpha * *average + (1 - options_.alpha) * score.value : score.value;
    }
    ++steps_;
    forget_old();
    double sum = 0;
    std::int64_t count = 0;
    for (const auto& [call, known] : calls_) {
      if (!known.average) continue;
      sum += *known.average;
      ++count;
    }
    mean_ = count > 0 ? sum / static_cast<double>(count) : 0;
  }

  // Of one step at a time, as an accelerator's scores come in one step late.
  std::unique_ptr<Collection> lend() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<Collection>();
    auto collection = std::move(idle_.back());
    idle_.pop_back();
    return collection;
  }
  void take_back(std::unique_ptr<Collection> collection) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(collection));
  }

 private:
  struct Known {
    std::int64_t number = 0;
    std::optional<double> average;
    std::int64_t last_step = 0;
  };
  using Calls = std::map<CallId, Known>;

  void forget_old() {
    for (auto each = calls_.begin(); each != calls_.end();) {
      if (each->second.last_step + kStepsRemembered >= steps_) {
        ++each;
        continue;
      }
      by_number_.erase(each->second.number);
      each = calls_.erase(each);
    }
  }

  const InfluenceWeightsOptions options_;
  std::mutex mutex_;  // protects what follows
  Calls calls_;
  std::unordered_map<std::int64_t, Calls::iterator> by_number_;
  std::int64_t next_ = 0;
  std::int64_t steps_ = 0;
  double mean_ = 0;
  std::vector<std::unique_ptr<Collection>> idle_;
};

class InfluenceStep final : public ValueWeights::Step {
 public:
  explicit InfluenceStep(std::shared_ptr<Averages> averages)
      : averages_(std::move(averages)), collection_(averages_->lend()) {}
  ~InfluenceStep() override { averages_->take_back(std::move(collection_)); }
  InfluenceStep(const InfluenceStep&) = delete;
  InfluenceStep& operator=(const InfluenceStep&) = delete;

  double weight(const ValueWeights::Call& call) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Averages::Weighed weighed = averages_->weigh({call.kind, places_[call.kind]++});
    numbers_.push_back(weighed.number);
    return weighed.weight;
  }

  void gradient(const ValueWeights::Call& call, const at::Tensor& value,
                const at::Tensor& gradient) override {
    if (!can_be_scored(value) || !can_be_scored(gradient)) return;
    collection_->add(number_of(call), gradient, value, averages_->options().stride);
  }

  // Where scores cannot be read the averages stay as they are.
  void ended(bool is_whole) noexcept override {
    try {
      if (is_whole) return averages_->take(collection_->take());
    } catch (const std::exception&) {
    }
    collection_->clear();
  }

 private:
  std::int64_t number_of(const ValueWeights::Call& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return numbers_[static_cast<std::size_t>(call.number)];
  }

  const std::shared_ptr<Averages> averages_;
  std::unique_ptr<Collection> collection_;
  std::mutex mutex_;  // protects what follows
  std::unordered_map<std::uint64_t, std::int64_t> places_;
  std::vector<std::int64_t> numbers_;  // by the number in the step
};

class InfluenceWeights final : public ValueWeights {
 public:
  explicit InfluenceWeights(const InfluenceWeightsOptions& options)
      : averages_(std::make_shared<Averages>(options)) {}
  std::unique_ptr<Step> step() override { return std::make_unique<InfluenceStep>(averages_); }

 private:
  const std::shared_ptr<Averages> averages_;
};

}  // namespace
}  // namespace influence

std::shared_ptr<ValueWeights> influence_weights(const InfluenceWeightsOptions& options) {
  influence::check(options);
  return std::make_shared<influence::InfluenceWeights>(options);
}

}  // namespace reprise
