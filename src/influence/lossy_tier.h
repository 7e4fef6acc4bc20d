// The lossy tier of a Pgac: what it knows of the layers' noise, and how it runs those that are kept
// (reprise/pgac.h, LossyOptions).
#pragma once

#include <reprise/compressed_store.h>
#include <reprise/pgac.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "influence/gradient_probe.h"
#include "influence/layer_runs.h"
#include "influence/routed_store.h"
#include "influence/routes.h"

namespace reprise::influence {

class LossyTier {
 public:
  explicit LossyTier(const LossyOptions& options);

  // Whether a step under such routes is expected to stay within the bound.
  bool is_within_bound(const Routes& routes) const;

  // Each layer's, for the steps until the next one: those of the threshold, within the bound.
  void choose(const std::vector<bool>& keep, const std::vector<double>& averages, double threshold);
  // All as they are, without a probe: before anything is known.
  void keep_all(std::size_t layers);
  const Routes& chosen() const { return chosen_; }
  // That the next step probes, if it is kept.
  std::optional<std::size_t> probed() const { return turns_.now; }

  // `routes`: of the layers with `keep`; with `may_tighten` they are made more exact where the
  // layers that have run were noisier than expected. `probed`: nullopt: none.
  at::Tensor run(const detail::Layers& layers, const std::vector<PgacLayer>& found,
                 const std::vector<bool>& keep, const Routes& routes, bool may_tighten,
                 std::optional<std::size_t> probed, const at::Tensor& input, const Meter& meter);
  // As they were in the last run().
  const Routes& as_run() const { return as_run_; }

  struct Step {
    double error = 0;
    Bytes before, after;
  };
  // After backward: takes what was measured, the scores of the step (NaN where there is none), and
  // what gradients the parameters have, and says what came of the step.
  Step end_step(const std::vector<double>& scores);
  void discard_step();

  // Whose turn it is to be probed.
  struct Turns {
    std::vector<std::int64_t> last;  // of each layer, in observed steps; -1: none yet
    std::vector<bool> refuses;       // layers that cannot be
    std::optional<std::size_t> now;  // in the next step
    std::int64_t steps = 0;          // that were observed
    std::int64_t next = 0, interval = 1;
  };
  // What a resumed training needs.
  struct State {
    std::vector<LayerNoise> layers;
    Routes chosen;
    Turns turns;
    std::uint64_t next_stream = 0;
  };
  State state() const;
  void restore(State state);

  // How one of the model's layers is measured in a route by itself, and what it parks there.
  std::shared_ptr<void> scope_to_measure(Compression route, std::shared_ptr<ParkedLog> log) const;
  // Of layers that have not parked anything yet.
  void learn(std::size_t layer, const ParkedLog::Sums& parked);

 private:
  class Runner;
  struct Probed {
    std::mutex mutex;
    std::vector<std::pair<std::size_t, ProbeFindings>> findings;
  };

  Routes tightened_to_bound(Routes routes) const;
  void take_findings();
  void take_gradient(std::size_t layer);
  void choose_probe();

  const LossyOptions options_;
  const std::shared_ptr<CompressedStore> store_;
  std::vector<LayerNoise> layers_;
  std::vector<std::vector<at::Tensor>> parameters_;  // of each layer, once it was probed
  Routes chosen_, as_run_;
  std::vector<bool> kept_;  // in the last run
  Turns turns_;
  const std::shared_ptr<Probed> findings_ = std::make_shared<Probed>();
  // Of the step under way: the most noise of each layer, and the last run's bytes.
  std::vector<double> noise_;
  Step step_;
};

}  // namespace reprise::influence
