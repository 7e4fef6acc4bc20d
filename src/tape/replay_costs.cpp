// Averages of what replays and packing took.
#include "tape/replay_costs.h"

#include <algorithm>
#include <atomic>

namespace reprise::tape {
namespace {

// In and out again, on one core.
constexpr double kPackedBytesPerSecond = 3e9;
// A measurement's share in what is known of a form.
constexpr double kShare = 0.25;
// What is longer is taken for an interruption: times what is known, and times the first run.
constexpr double kMostOfKnown = 2;
constexpr double kMostOfFirst = 4;
// A guess, times the first run.
constexpr double kMostOfGuess = 2;
// Of a rate's older measurements, with each new one.
constexpr double kKept = 0.98;
// Of a rate's trust and of the rate itself, each time it decides against what would measure it. One
// that was taken for twice too high is tried again after some hundred times.
constexpr double kTrustKept = 0.9;
constexpr double kRateKept = 0.995;

std::atomic<const ReplayCosts::Given*> given{nullptr};

}  // namespace

ReplayCosts::GivenScope::GivenScope(const Given& costs) : given_(costs) { given = &given_; }

ReplayCosts::GivenScope::~GivenScope() { given = nullptr; }

ReplayCosts::ReplayCosts(bool learns)
    : source_(learns ? Source::kMeasured : Source::kFirstRuns),
      packed_bytes_a_second_(kPackedBytesPerSecond) {
  const Given* const costs = given;
  if (costs == nullptr) return;
  source_ = Source::kGiven;
  seconds_a_replay_ = costs->seconds_a_replay;
  packed_bytes_a_second_ = costs->packed_bytes_a_second;
}

void ReplayCosts::Rate::add(double seconds, std::int64_t bytes) {
  if (bytes <= 0) return;
  seconds_ = kKept * seconds_ + seconds;
  bytes_ = kKept * bytes_ + static_cast<double>(bytes);
}

void ReplayCosts::Rate::fade() {
  seconds_ *= kTrustKept * kRateKept;
  bytes_ *= kTrustKept;
}

double ReplayCosts::seconds(const Learnt& learnt, double first, std::int64_t bytes) const {
  if (source_ != Source::kMeasured) {
    return source_ == Source::kFirstRuns ? first : seconds_a_replay_;
  }
  if (learnt.again > 0) return learnt.again;
  return std::min(first + slower_.of(bytes), kMostOfGuess * first);
}

void ReplayCosts::replayed(Learnt& learnt, double first, std::int64_t bytes, double seconds) {
  if (source_ != Source::kMeasured) return;
  const bool is_known = learnt.again > 0;
  const double most = is_known ? kMostOfKnown * learnt.again : kMostOfFirst * first;
  const double taken = std::min(seconds, most);
  learnt.again = is_known ? learnt.again + kShare * (taken - learnt.again) : taken;
  // Not what it took: forms that were never run again would be taken for dearer than this one.
  slower_.add(std::max(learnt.again - first, 0.0), bytes);
}

double ReplayCosts::seconds_to_pack(std::int64_t bytes) const {
  if (!in_.is_known()) return static_cast<double>(bytes) / packed_bytes_a_second_;
  return in_.of(bytes) + (out_.is_known() ? out_ : in_).of(bytes);
}

// Of a measurement, so much counts: a thread that was interrupted says nothing of packing.
double ReplayCosts::most_of_packing(const Rate& rate, std::int64_t bytes) const {
  return rate.is_known() ? kMostOfKnown * rate.of(bytes) : kMostOfFirst * seconds_to_pack(bytes);
}

void ReplayCosts::packed(std::int64_t bytes, double seconds) {
  if (source_ == Source::kMeasured) {
    in_.add(std::min(seconds, most_of_packing(in_, bytes)), bytes);
  }
}

void ReplayCosts::unpacked(std::int64_t bytes, double seconds) {
  if (source_ == Source::kMeasured) {
    out_.add(std::min(seconds, most_of_packing(out_, bytes)), bytes);
  }
}

void ReplayCosts::declined_packing() {
  in_.fade();
  out_.fade();
}

}  // namespace reprise::tape
