// Averages of what replays and packing took.
#include "tape/replay_costs.h"

#include <algorithm>

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

}  // namespace

void ReplayCosts::Rate::add(double seconds, std::int64_t bytes) {
  if (bytes <= 0) return;
  seconds_ = kKept * seconds_ + seconds;
  bytes_ = kKept * bytes_ + static_cast<double>(bytes);
}

double ReplayCosts::seconds(const Learnt& learnt, double first, std::int64_t bytes) const {
  if (!learns_) return first;
  if (learnt.again > 0) return learnt.again;
  const double slower = slower_.per_byte() * static_cast<double>(bytes);
  return std::min(first + slower, kMostOfGuess * first);
}

void ReplayCosts::replayed(Learnt& learnt, double first, std::int64_t bytes, double seconds) {
  if (!learns_) return;
  const bool is_known = learnt.again > 0;
  const double most = is_known ? kMostOfKnown * learnt.again : kMostOfFirst * first;
  const double taken = std::min(seconds, most);
  learnt.again = is_known ? learnt.again + kShare * (taken - learnt.again) : taken;
  // Not what it took: forms that were never run again would be taken for dearer than this one.
  slower_.add(std::max(learnt.again - first, 0.0), bytes);
}

double ReplayCosts::seconds_to_pack(std::int64_t bytes) const {
  const auto count = static_cast<double>(bytes);
  if (!in_.is_known()) return count / kPackedBytesPerSecond;
  const double in = in_.per_byte();
  return count * (in + (out_.is_known() ? out_.per_byte() : in));
}

void ReplayCosts::packed(std::int64_t bytes, double seconds) {
  if (learns_) in_.add(seconds, bytes);
}

void ReplayCosts::unpacked(std::int64_t bytes, double seconds) {
  if (learns_) out_.add(seconds, bytes);
}

}  // namespace reprise::tape
