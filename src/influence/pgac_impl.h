// What a Pgac (pgac.h) remembers from step to step.
#pragma once

#include <reprise/experimental/pgac.h>

#include <memory>
#include <optional>
#include <vector>

#include "influence/decision.h"
#include "influence/fitting.h"
#include "influence/layer_runs.h"
#include "influence/learned_gamma.h"
#include "influence/lossy_tier.h"
#include "influence/routed_fitting.h"
#include "region/layers_case.h"

namespace reprise {

namespace influence {
// Throws UsageError, naming the option.
void check_options(const PgacOptions& options);
}  // namespace influence

struct Pgac::Impl {
  // What was measured with inputs of a shape, and the mask that fits there.
  struct Shape {
    detail::LayersCase of;
    std::vector<PgacLayer> layers;
    influence::Fitting fitting;
    influence::Fitted fitted;
    std::int64_t decision;  // that `fitted` is of
    // With the lossy tier.
    influence::RoutedChains chains;
    influence::RoutedFit routed;
    std::vector<influence::ParkedLog::Sums> parked;  // by each layer in 8 bits
  };

  explicit Impl(const PgacOptions& given);

  at::Tensor run(const detail::Layers& layers, const at::Tensor& x);
  void observe(std::int64_t step);

  void find_layers(std::vector<PgacLayer> layers, std::int64_t model_layers);
  void expect_restored(const detail::Layers& layers) const;
  std::unique_ptr<Shape> measured(const detail::Layers& layers, const at::Tensor& x,
                                  detail::LayersCase of) const;
  influence::RoutedChains measured_in_routes(
      const detail::Layers& layers, const at::Tensor& x,
      std::vector<std::shared_ptr<influence::ParkedLog>>& in_8_bits) const;
  Shape& shape_of(const detail::Layers& layers, const at::Tensor& x);
  const influence::Fitted& fitted(Shape& shape);
  influence::Fitted decided_fit(const influence::Fitting& fitting) const;
  influence::RoutedFit routed(const Shape& shape) const;
  at::Tensor run_lossy(const detail::Layers& layers, const at::Tensor& x, const Shape* shape);
  void note_fitted(const influence::Fitted& fits);
  void note_mask(const std::vector<bool>& mask);
  void note_routes(const influence::Routes& routes);
  double gamma_at(double fraction) const;
  void learn_gamma(double fraction, double quantile, const std::vector<double>& combined);
  void combine(std::vector<double>& values) const;
  void take_scores();
  // By what averages are made.
  std::vector<double> ranked_scores() const;
  bool decide(
      double quantile,
      const std::vector<double>& combined);  // false: nothing is known, or nothing may change

  PgacOptions options;
  std::shared_ptr<InfluenceMeter> meter;
  std::vector<PgacLayer> found;
  std::int64_t layers_of_model = 0;
  bool first_stays = false;
  bool is_restored = false;  // `found` is a state's, and no model has been run yet

  std::vector<double> averages;
  // At the last decision: the averages, and the mask by the threshold. Decisions are counted; zero
  // of them: nothing is known.
  std::vector<double> decided;
  std::vector<bool> wanted;
  std::int64_t decision = 0;
  std::int64_t since_change;  // observed steps, up to as many as must be between two changes
  bool is_set = false;        // `wanted`, by the program

  std::unique_ptr<influence::LossyTier> lossy;  // null: gradients are exact

  influence::LearnedGamma gamma;
  std::vector<std::unique_ptr<Shape>> shapes;
  Shape* current = nullptr;  // of the last run
  PgacReport report;
};

}  // namespace reprise
