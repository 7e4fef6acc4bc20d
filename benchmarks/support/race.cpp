// The rounds of a race; see race.h.
#include "benchmarks/support/race.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <utility>

namespace reprise::bench {
namespace {

// Long enough for a clock reading to cost nothing, shorter than the scheduler's slices.
constexpr double kBatchSeconds = 2e-3;
constexpr int kFewestRounds = 5;
constexpr int kFewestRoundsQuick = 2;
// Of the time that was asked for, where a run shall be quick.
constexpr double kQuickShare = 0.1;

}  // namespace

double time_calls(const Step& step, int calls, c10::Device device) {
  if (calls > 1) step();
  const Seconds start = time_on(device);
  for (int i = 0; i < calls; ++i) step();
  return (time_on(device) - start).count() / calls;
}

Race::Race(Session& session, std::string bench, PeerProcess* peer)
    : session_(session), bench_(std::move(bench)), peer_(peer) {}

void Race::add(std::string name, Step step) {
  auto ours = [step = std::move(step), on = session_.device()](int calls) {
    return time_calls(step, calls, on);
  };
  runners_.push_back({.name = name, .time = std::move(ours), .is_peer = false});
  const std::string peers_name = bench_ + "/" + name;
  if (peer_ == nullptr || !peer_->has(peers_name)) return;
  auto theirs = [peer = peer_, peers_name](int calls) { return peer->time(peers_name, calls); };
  runners_.push_back({.name = name, .time = std::move(theirs), .is_peer = true});
}

void Race::add_peer(std::string name, Step step) {
  auto theirs = [step = std::move(step), on = session_.device()](int calls) {
    return time_calls(step, calls, on);
  };
  runners_.push_back({.name = std::move(name), .time = std::move(theirs), .is_peer = true});
}

void Race::run(Seconds time) {
  for (Runner& runner : runners_) {
    runner.time(2);
    const double seconds = std::min(runner.time(2), runner.time(2));
    runner.calls = std::clamp(static_cast<int>(std::lround(kBatchSeconds / seconds)), 1, 10000);
  }
  const Seconds limit = session_.quick() ? kQuickShare * time : time;
  const auto fewest =
      static_cast<std::size_t>(session_.quick() ? kFewestRoundsQuick : kFewestRounds);
  // The sides take turns at being first. Within a side, whose steps are compared with each other,
  // the order is drawn, so that none always follows the other side's long steps on a cold cache.
  const auto peers_begin = std::stable_partition(
      runners_.begin(), runners_.end(), [](const Runner& runner) { return !runner.is_peer; });
  const auto ours_count = peers_begin - runners_.begin();
  bool ours_first = true;
  std::minstd_rand order(1);
  const Stopwatch watch;
  while (ours_.size() < fewest || watch.elapsed() < limit) {
    Round ours;
    Round peers;
    const auto middle = runners_.begin() + (ours_first ? ours_count : runners_.size() - ours_count);
    std::shuffle(runners_.begin(), middle, order);
    std::shuffle(middle, runners_.end(), order);
    for (const Runner& runner : runners_) {
      (runner.is_peer ? peers : ours).seconds_[runner.name] = runner.time(runner.calls);
    }
    ours_.push_back(std::move(ours));
    peers_.push_back(std::move(peers));
    std::rotate(runners_.begin(), middle, runners_.end());
    ours_first = !ours_first;
  }
}

double Race::report(const std::string& name, const std::string& unit, const Formula& formula,
                    const Bar& bar) const {
  std::vector<double> ours;
  std::vector<double> peers;
  for (const Round& round : ours_) ours.push_back(formula(round));
  try {
    for (const Round& round : peers_) peers.push_back(formula(round));
  } catch (const std::out_of_range&) {
    peers.clear();  // the peer has no such step
  }
  Figure figure = make_figure(bench_, name, unit, ours, peers, bar);
  const double value = figure.ours;
  session_.report(std::move(figure));
  return value;
}

}  // namespace reprise::bench
