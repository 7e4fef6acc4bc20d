// Times several steps of both languages against each other: round by round, one short batch of
// each.
//
// What is reported is mostly a difference of steps (a region, less the plain call, less one more
// forward) that is small against each of them. Batches of a few milliseconds that alternate within
// a round see the same clock rate and the same neighbours; a figure is computed in each round and
// the median over rounds reported, so that a disturbed round is one outlier.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/support/device.h"
#include "benchmarks/support/session.h"
#include "core/clock.h"

namespace reprise::bench {

using Step = std::function<void()>;
using NamedSteps = std::map<std::string, Step>;

// Seconds a call of each step, in one round and one language.
class Round {
 public:
  Round() = default;
  explicit Round(std::map<std::string, double> seconds) : seconds_(std::move(seconds)) {}
  // Throws std::out_of_range for a step that was not run.
  double operator[](const std::string& step) const { return seconds_.at(step); }

 private:
  friend class Race;
  std::map<std::string, double> seconds_;
};

using Formula = std::function<double(const Round&)>;

// Seconds a call by time_on(), over `calls` calls after one that is not timed (if there are several).
double time_calls(const Step& step, int calls, c10::Device device = c10::kCPU);

class Race {
 public:
  // A null peer: ours alone.
  Race(Session& session, std::string bench, PeerProcess* peer);

  // Adds a step of ours, and the peer's of the same name, "<bench>/<name>", where the peer has it.
  void add(std::string name, Step step);
  // Adds a peer's step that runs in this process.
  void add_peer(std::string name, Step step);

  // Runs rounds until the time is spent, but at least a few.
  void run(Seconds time);

  // Reports the median of `formula` over the rounds; the peer's too if it has every step of it.
  // Returns ours.
  double report(const std::string& name, const std::string& unit, const Formula& formula,
                const Bar& bar = {}) const;

 private:
  struct Runner {
    std::string name;
    std::function<double(int calls)> time;
    bool is_peer;
    int calls = 1;
  };

  Session& session_;
  std::string bench_;
  PeerProcess* peer_;
  std::vector<Runner> runners_;
  std::vector<Round> ours_;
  std::vector<Round> peers_;
};

}  // namespace reprise::bench
