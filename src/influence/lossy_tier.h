// The lossy tier of a Pgac: what it knows of the layers' noise, when it audits itself, and how it
// runs the layers (pgac.h, LossyOptions).
#pragma once

#include <reprise/experimental/pgac.h>
#include <reprise/store.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "influence/layer_audit.h"
#include "influence/layer_runs.h"
#include "influence/regimes.h"
#include "influence/routed_store.h"
#include "influence/routes.h"
#include "influence/sensitivities.h"

namespace reprise::influence {

class LossyTier {
 public:
  explicit LossyTier(const LossyOptions& options);

  // Whether a step under such routes is expected to stay within the bound.
  bool is_within_bound(const Routes& routes) const;

  // Each layer's, for the steps until the next one: those of the threshold, within the bound.
  void choose(const std::vector<bool>& keep, const std::vector<double>& averages, double threshold);
  // All as they are: before anything is known.
  void keep_all(std::size_t layers);
  const Routes& chosen() const { return known_.chosen; }
  // For good: all that follows is exact.
  void switch_off(const std::string& why);

  enum class Plan : std::uint8_t {
    kExact,
    kInspect,  // exact, layers are kept; it is found out whether they may be audited
    kAudit,    // exact, layers are run again; what the lossy step's gradients would be is measured
    kLossy,
  };
  // Of the run of that input that comes now, which is the same for all runs of an input until
  // end_step(). A step is audited in all its runs or in none: the first one decides.
  Plan plan(const at::Tensor& input, const Routes& routes, bool has_budget, bool may_audit);

  // Not for kExact. `routes`: of the layers with `keep`. `may_change`: layers whose input is not
  // like those that were audited are kept as they are, and so are values that would be noisier than
  // was planned.
  at::Tensor run(Plan plan, const detail::Layers& layers, const std::vector<PgacLayer>& found,
                 const std::vector<bool>& keep, const Routes& routes, bool may_change,
                 const at::Tensor& input, const Meter& meter);
  // As they were in the last run().
  const Routes& as_run() const { return as_run_; }

  // After backward: takes what was measured, the scores of the step (NaN where there is none), and
  // what gradients the parameters have; writes what came of the step.
  void end_step(const std::vector<double>& scores, PgacReport& report);
  void discard_step();

  static constexpr double kMostCredit = 12;
  // When the next audit is.
  struct Turns {
    std::int64_t steps = 0;  // that were observed
    std::int64_t next = 0, interval = 1;
    double credit = kMostCredit;  // audits of unknown steps that may be made
    std::int64_t spoilt = 0;      // audits in a row that were not completed
    bool operator==(const Turns&) const = default;
  };
  // What a resumed training needs.
  struct State {
    std::vector<LayerNoise> layers;
    Routes wanted, chosen;
    Turns turns;
    Sensitivities::State sensitivities;
    std::vector<Regimes::Audited> regimes;
    bool is_inspected = false;
    std::string off;  // why the tier is; empty: it is not
    std::int64_t audits = 0, failures = 0;
    double audited_error = -1;  // of the last audit; -1: none
    std::uint64_t next_stream = 0;
  };
  State state() const;
  void restore(State state);

  // How one of the model's layers is measured in a route by itself, and what it parks there.
  std::shared_ptr<void> scope_to_measure(Compression route, std::shared_ptr<ParkedLog> log) const;
  // Of layers that have not parked anything yet.
  void learn(std::size_t layer, const ParkedLog::Sums& parked);

 private:
  class LossyRunner;
  class AuditRunner;

  Plan plan_alone(const at::Tensor& input, const Routes& routes, bool has_budget,
                  bool may_audit) const;
  std::vector<double> log_weights() const;
  bool knows(const at::Tensor& input) const;
  void limit_sensitivities();
  void take_step(const std::vector<double>& scores, PgacReport& report);
  // False where no parameter has a gradient.
  bool take_audit(const std::vector<double>& incoherences);
  void take_spoilt_audit();
  void judge(double error);
  void set_next_audit();
  double gradient_square() const;
  void note_spread(std::size_t layer, double spread, double values);

  const LossyOptions options_;
  const std::shared_ptr<CompressedStore> store_;
  State known_;
  Sensitivities sensitivities_;
  Regimes regimes_;
  Routes as_run_;
  std::vector<std::vector<at::Tensor>> parameters_;  // of each layer, once they were seen

  // Of the step under way.
  struct Step {
    std::optional<Plan> plan;   // of its first run
    bool is_partial = false;    // a run of an audited step could not be audited
    bool is_missed = false;     // a run should have been audited, and the first one was not
    std::vector<double> noise;  // the most of each layer
    Bytes before, after;        // of the last run
    bool is_unknown = false;    // not like those that were audited
    bool is_test = false;       // of routes that would have been run
    bool is_new = false;        // the audited step would have been exact otherwise
    Routes routes;              // of the audit
    std::vector<std::vector<Features>> inputs;        // of the audit: Regimes::Audited
    std::vector<std::vector<at::Tensor>> parameters;  // of layers, seen for the first time
    std::shared_ptr<AuditFindings> findings;
  };
  Step step_;
};

}  // namespace reprise::influence
