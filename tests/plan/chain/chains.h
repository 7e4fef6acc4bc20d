// What the tests of chains share: chains by hand and at random, and all schedules of a kind.
#pragma once

#include <reprise/planners.h>

#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

namespace reprise::plan {

inline std::chrono::duration<double> seconds(double count) {
  return std::chrono::duration<double>(count);
}

// `count` stages of 1 s forward and 2 s backward, with outputs of 10 bytes that keep 30.
inline Chain uniform_chain(std::int64_t count) {
  ChainStage stage;
  stage.forward = seconds(1);
  stage.backward = seconds(2);
  stage.output = Bytes(10);
  stage.saved = Bytes(30);
  stage.output_gradient = Bytes(10);
  Chain chain;
  chain.stages.assign(static_cast<std::size_t>(count), stage);
  return chain;
}

// Whole seconds, and bytes up to about `most`, so that nothing is rounded.
inline Chain random_chain(std::uint64_t seed, std::int64_t count, std::int64_t most) {
  std::mt19937_64 random(seed);
  const auto up_to = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n + 1));
  };
  Chain chain;
  chain.input_gradient = Bytes(up_to(most));
  for (std::int64_t i = 0; i < count; ++i) {
    ChainStage stage;
    stage.name = "f" + std::to_string(i);
    stage.forward = seconds(static_cast<double>(up_to(9)));
    stage.backward = seconds(static_cast<double>(up_to(9)));
    stage.output = Bytes(up_to(most));
    stage.saved = stage.output + Bytes(up_to(2 * most));
    stage.saves_output = up_to(1) == 0;
    if (!stage.saves_output) stage.saved = Bytes(up_to(2 * most));
    stage.needs_input = up_to(1) == 0;
    stage.forward_temporaries = Bytes(up_to(most / 2));
    stage.keep_temporaries = Bytes(up_to(most / 2));
    stage.backward_temporaries = Bytes(up_to(most)) - Bytes(most / 2);
    stage.output_gradient = Bytes(up_to(most));
    stage.parameter_gradients = Bytes(up_to(most / 2));
    stage.layers = 1 + up_to(2);
    chain.stages.push_back(std::move(stage));
  }
  return chain;
}

// Calls `use` with every schedule that keeps what it stores until backward has used it: the first
// of some stages is kept, or they are split in two, the first of which runs again later.
class EveryPersistentSchedule {
 public:
  using Use = std::function<void(const Schedule&)>;

  // With `offload`, what is kept the first time may also go to a store meanwhile.
  EveryPersistentSchedule(std::int64_t stages, const Use& use, bool offload = false)
      : offload_(offload), last_(static_cast<std::int32_t>(stages) - 1) {
    extend(0, last_, [&] { use(schedule_); });
  }

 private:
  using Kind = ScheduleOp::Kind;

  void with(std::initializer_list<ScheduleOp> steps, const std::function<void()>& then) {
    const std::size_t before = schedule_.ops.size();
    schedule_.ops.insert(schedule_.ops.end(), steps);
    then();
    schedule_.ops.resize(before);
  }

  void extend(std::int32_t s, std::int32_t t, const std::function<void()>& then) {
    const auto rest = [&](const std::function<void()>& after) {
      if (s == t)
        after();
      else
        extend(s + 1, t, after);
    };
    with({{Kind::kForwardKeep, s}}, [&] { rest([&] { with({{Kind::kBackward, s}}, then); }); });
    if (offload_ && t == last_) {
      with({{Kind::kForwardKeep, s}, {Kind::kOffload, s}}, [&] {
        rest([&] { with({{Kind::kLoad, s}, {Kind::kBackward, s}}, then); });
      });
    }
    const std::size_t before = schedule_.ops.size();
    for (std::int32_t u = s + 1; u <= t; ++u) {
      schedule_.ops.push_back({u == s + 1 ? Kind::kForwardCheckpoint : Kind::kForwardDrop, u - 1});
      extend(u, t, [&] { extend(s, u - 1, then); });
      schedule_.ops.resize(before + static_cast<std::size_t>(u - s));
    }
    schedule_.ops.resize(before);
  }

  const bool offload_;
  const std::int32_t last_;
  Schedule schedule_;
};

}  // namespace reprise::plan
