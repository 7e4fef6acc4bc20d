// What operators take of an accelerator's memory and time, learnt over the steps of a budget. A
// call is known by its signature: calls of one operator on the same shapes. Under
// libtorch::limit_mutex().
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

namespace reprise::tape {

// Bytes above what was live before the call, at its worst moment: results and workspace.
class OperatorSizes {
 public:
  // The figures of that many calls are looked at; workspaces are the same in all of them but the
  // first, in which libraries try out ways.
  static constexpr int kEnough = 3;
  static constexpr std::size_t kMost = 1 << 16;

  bool is_learnt(std::uint64_t signature) const {
    const auto found = known_.find(signature);
    return found != known_.end() && found->second.calls >= kEnough;
  }
  // Nothing where the call was never made.
  std::optional<std::int64_t> bytes(std::uint64_t signature) const {
    const auto found = known_.find(signature);
    if (found == known_.end()) return std::nullopt;
    return found->second.bytes;
  }
  void note(std::uint64_t signature, std::int64_t bytes) {
    if (known_.size() >= kMost) known_.clear();
    Known& known = known_[signature];
    ++known.calls;
    // The second call replaces the first one's figure, since its workspace may be another.
    known.bytes = known.calls == 2 || bytes > known.bytes ? bytes : known.bytes;
  }

 private:
  struct Known {
    int calls = 0;
    std::int64_t bytes = 0;
  };
  std::unordered_map<std::uint64_t, Known> known_;
};

// Seconds on the device: the least that was measured for the signature. Where nothing was measured,
// a line is fitted through all measurements over the bytes that calls read and make. Before there
// are any, an assumed accelerator gives the rates.
//
// Measurements come in rounds, since clocks change with heat and power. In a later round a longer
// time is taken over in part, and a shorter one at once.
class DeviceCosts {
 public:
  // Measurements of a signature in a round.
  static constexpr int kEnough = 3;
  static constexpr std::size_t kMost = 1 << 16;
  // A launch, and a byte at a terabyte a second.
  static constexpr double kLaunch = 5e-6;
  static constexpr double kPerByte = 1e-12;
  // The share of a longer time of a later round.
  static constexpr double kShare = 0.25;

  // Whether the round needs no more measurements of it.
  bool is_learnt(std::uint64_t signature) const {
    const auto found = known_.find(signature);
    return found != known_.end() && found->second.round == round_ && found->second.calls >= kEnough;
  }
  void begin_round() { ++round_; }

  double seconds(std::uint64_t signature, std::int64_t bytes) const {
    const auto found = known_.find(signature);
    if (found != known_.end()) return found->second.seconds;
    return by_bytes(static_cast<double>(bytes));
  }
  // `bytes`: of the call.
  void note(std::uint64_t signature, std::int64_t bytes, double seconds) {
    if (known_.size() >= kMost) known_.clear();
    const auto place = known_.try_emplace(signature, Known{seconds, round_, round_, 0}).first;
    Known& known = place->second;
    if (known.round != round_) known.calls = 0;
    known.round = round_;
    ++known.calls;
    if (seconds <= known.seconds) {
      known.seconds = seconds;
    } else if (known.first != round_) {
      known.seconds += kShare * (seconds - known.seconds);
    }
    const auto x = static_cast<double>(bytes);
    count_ += 1;
    x_ += x;
    y_ += seconds;
    xx_ += x * x;
    xy_ += x * seconds;
  }

 private:
  // Least squares, neither part below zero.
  double by_bytes(double x) const {
    if (count_ < 2) return kLaunch + kPerByte * x;
    const double spread = xx_ - x_ * x_ / count_;
    const double slope = spread > 0 ? (xy_ - x_ * y_ / count_) / spread : 0;
    const double per_byte = slope > 0 ? slope : 0;
    const double launch = (y_ - per_byte * x_) / count_;
    return (launch > 0 ? launch : 0) + per_byte * x;
  }

  struct Known {
    double seconds;
    std::int64_t first;  // the round of its first measurement
    std::int64_t round;
    int calls;  // measured in that round
  };
  std::unordered_map<std::uint64_t, Known> known_;
  std::int64_t round_ = 0;
  double count_ = 0;
  double x_ = 0;
  double y_ = 0;
  double xx_ = 0;
  double xy_ = 0;
};

}  // namespace reprise::tape
