// PGAC, gradient-aware proactive activation checkpointing: layers whose activations have little
// influence on the gradients are recomputed, the others kept.
//
//   reprise::Pgac pgac({.alpha = 0.9, .quantile = 0.5, .budget = reprise::MB(400)});
//   for (std::int64_t step = 0; step < steps; ++step) {
//     auto loss = loss_of(pgac.run(model, x));      // torch::nn::Sequential, or a list of blocks
//     loss.backward();
//     pgac.observe(step);
//     optimizer.step(); optimizer.zero_grad();
//   }
//
// The method, with the numbers of the sections of the proposal that it comes from ("Gradient-Aware
// Proactive Activation Checkpointing for Large-Scale Neural Network Training"):
//   2.2  influence of layer l in step t    s = || d * a ||_2          (reprise/influence.h)
//        its moving average                m_t = alpha m_{t-1} + (1 - alpha) s_t
//   2.3  threshold                         tau_t = gamma_t Quantile_q(m_t of all layers)
//   2.4  mask of the next step             c = 1, kept, where m_t >= tau_t, else 0
//   2.1  budget                            bytes of the step under c <= budget
//
// Gradients are bitwise those of the plain step under every mask: influence decides what is
// computed again, never what is computed. The lossy tier (LossyOptions, below), which changes
// gradients, is another thing, and only there if it is asked for.
//
// - **Layers** are those of the model; one that writes to its input in place, or whose result is a
//   view of it, is one layer with the one before, since the one cannot run again without the
//   other. (An activation that the next layer changes in place is so scored after the change.)
// - **Runs.** Neighbouring layers with c = 0 are one region (reprise/checkpoint.h) that starts at
//   the last activation kept. The last such run of the model is kept instead, as
//   checkpoint_sequential() does: backward needs it first, so to run it again would cost a forward
//   and save nothing.
// - **The first step** keeps all, or, where that would pass the budget, what is cheapest to keep.
// - **The budget** is for what forward and backward of the model add to what is live before, as
//   that of checkpoint_sequential(model, Bytes, x): the model is measured at its first run with
//   inputs of a shape (reprise/profile_chain.h), scoring included, and the bytes of a mask are
//   arithmetic on that. While they are over the budget, the kept layer with the least rank goes. If
//   that does not lead below the budget (a long run needs as much when it is run again as when it
//   is kept), the mask that fits and discards the least sum of influence (or seconds, or their
//   product, as the ranking says) is taken. Only the first run may take more, where one layer alone
//   does.
//
// Threads: one thread calls run() and observe() at a time; backward may run on any.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/checkpoint_sequential.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace reprise {

// How the threshold's factor changes over the training; `fraction` of it is done, from 0 to 1.
struct GammaSchedule {
  enum class Kind : std::uint8_t {
    kConstant,  // first
    kLinear,    // from first to last, linear in the fraction
    kCosine,    // from first to last along half a cosine
    // first * exp(f(fraction)), where f is a network with one hidden layer of 8 (tanh) that starts
    // as zero and is trained while the model is, by simultaneous perturbation (SPSA: Spall, IEEE
    // Transactions on Automatic Control 37, 1992): each observed step the predicted seconds of two
    // masks are compared, those of the factor's parameters moved a little to either side. Needs a
    // budget: without one nothing would speak against keeping all.
    kLearned,
  };

  Kind kind = Kind::kConstant;
  double first = 1;
  double last = 1;

  static GammaSchedule constant(double gamma) { return {Kind::kConstant, gamma, gamma}; }
  static GammaSchedule linear(double first, double last) { return {Kind::kLinear, first, last}; }
  static GammaSchedule cosine(double first, double last) { return {Kind::kCosine, first, last}; }
  static GammaSchedule learned(double first = 1) { return {Kind::kLearned, first, first}; }

  bool operator==(const GammaSchedule&) const = default;
};

// By what the budget chooses among kept layers: the least goes first.
enum class PgacRanking : std::uint8_t {
  kInfluence,           // the moving average: the proposal's
  kCost,                // seconds of forward per byte that is kept
  kInfluenceTimesCost,  // the product
  // By chance: numbers that PgacOptions::seed draws once stand for the averages, in the threshold
  // too. What it is compared with tells what influence is worth.
  kRandom,
};

// The lossy tier: a layer below the threshold is not run again, but what it saves for backward is
// kept in fewer bits (reprise/compressed_store.h, as ActNN, arXiv:2104.14129, and GACT,
// arXiv:2206.11357, do it), which costs neither its seconds nor its bytes.
//
//   reprise::Pgac pgac({.lossy = reprise::LossyOptions{.gradient_error = 1e-2}});
//
// - **Routes.** Layers with m_t >= tau_t are kept as they are, those below in 8 bits, those below
//   far * tau_t in 4. Values that are a mask or mostly zeros stay exact in every route.
// - **Error.** Rounding at random, without bias, adds noise to what backward reads, and so to the
//   gradients. How much is estimated: the noise of each parked value is known from what it holds,
//   and what a layer makes of it is measured in *probes*: in backward of one step, one layer's
//   gradients are made twice more, from the values and from values with noise, and compared
//   (as GACT finds sensitivities, but layer by layer). Noise of layers is independent, and of one
//   that runs later it reaches the parameters of those before: with n_j the noise of what layer j
//   saves, a_j how much of it is in the gradient of its input (relative squares), b_j how much of
//   it is in those of its parameters, g_j (square of their error by n_j),
//     error^2 = sum_j (b_j n_j + max(|g_j|^2, b_j) sum_{l > j} a_l n_l) / sum_j |g_j|^2.
//   Between probes b_j goes with the square of the layer's score, |g_j|^2 is read in observe() from
//   the parameters' gradients: call it before they are zeroed. Parameters before the first layer or
//   after the last are not in it. Measured errors beside: docs/results/pgac.md.
// - **Bound.** Routes of a step are made more exact (4 bits, 8 bits, bf16, as they are; first where
//   the error is largest) until the estimate is at most `gradient_error`, from measured noise for
//   the layers that have run and from the step before for the others, a twentieth to spare. After
//   backward the estimate is made anew with the step's own scores and gradients: where these have
//   changed it may pass the bound, is reported, and the next step is routed by it. A layer that was
//   not probed yet counts with a = 1 and the mean |g|^2, or stays if its values are not known.
// - **Budget.** Where the layers so routed need more than the budget, those of least rank take a
//   route of fewer bits, as long as the error stays in its bound, and then the rest is as without
//   the tier: the kept layer of least rank is run again. The first step is as without it, too; and
//   routes are not changed within a step.
// - A probed layer is kept as it is in its step, and holds its gradients three times over in its
//   backward; where that would pass the budget it is not probed. Hooks on parameters are called
//   once, as without a probe; a layer with hooks on tensors inside, or that retain gradients there,
//   is not probed. Nor are steps with create_graph.
struct LossyOptions {
  // The most relative error of the step's gradients, |g' - g| / |g|, as estimated; above 0.
  double gradient_error = 1e-2;
  double far = 0.5;          // from 0, no layer in 4 bits, to 1, all that are below tau
  Bytes minimum = KiB(64);   // smaller values stay as they are
  std::int64_t block = 256;  // CompressedStoreOptions::block
  std::uint64_t seed = 0;    // of stochastic rounding
  // One layer in so many observed steps is probed, in turn; in each step at first, and more often
  // again where findings are other than before.
  std::int64_t probe_every = 4;
};

// What happens to what a layer saves. From what changes nothing to what changes most, but for the
// last, which changes nothing either.
enum class PgacRoute : std::uint8_t { kKept, kBfloat16, kInt8, kInt4, kRecomputed };

struct PgacOptions {
  double alpha = 0.9;     // of the moving average, from 0 to below 1
  double quantile = 0.5;  // q, from 0 to 1; interpolated linearly, as NumPy does
  GammaSchedule gamma = {};
  // The steps of the training, for the fraction that `gamma` goes by: observe(step) is at step /
  // steps. Required unless gamma is constant.
  std::int64_t steps = 0;

  // Where a layer's average starts: at its first score, or at zero.
  enum class Start : std::uint8_t { kFirstScore, kZero };
  Start start = Start::kFirstScore;
  // As the proposal's pseudocode has it where it differs from its formulas: averages start at zero
  // (those of layers without any score are zero too, whatever `start` says), and the threshold is
  // taken when only the last layer's average is new.
  bool literal = false;

  std::optional<Bytes> budget = {};
  PgacRanking ranking = PgacRanking::kInfluence;
  // With room left in the budget, keeps discarded layers again, those of highest rank first.
  bool fills_budget = false;
  // With a budget: the mask is not the threshold's, made to fit layer by layer, but of all masks
  // that fit the one whose discarded layers have the least sum of influence (or seconds, or their
  // product, as `ranking` says). With PgacRanking::kCost that is the fastest mask that there is.
  // The threshold is then reported, and decides nothing.
  bool searches = false;

  // A kept layer goes when its average is below tau (1 - hysteresis), a discarded one comes back
  // when it is at or above tau (1 + hysteresis). From 0 to below 1.
  double hysteresis = 0;
  // The least number of observed steps between two changes of the mask.
  std::int64_t steps_between_changes = 1;

  std::int64_t stride = 1;  // InfluenceOptions::stride
  std::uint64_t seed = 0;   // of what the learned schedule and PgacRanking::kRandom draw

  // One threshold for several processes, each with a Pgac for its copy of the model: called in
  // observe() with the averages of this one's layers (NaN where there is none), it makes of them
  // those that the threshold and the mask are taken of, by an all-reduce for instance, so that all
  // come to one mask. Report and state have this process's own averages. With `literal` it is
  // called twice. Empty: each process has its own threshold. Budgets go by what each has measured,
  // so masks that they correct may differ all the same. Throws UsageError if it changes the number.
  std::function<void(std::vector<double>& averages)> combine = {};

  std::optional<LossyOptions> lossy = {};  // none: gradients are exact
};

struct PgacLayer {
  std::string name;
  std::int64_t first = 0, count = 1;  // of the model's layers: those that are one here
};

struct PgacReport {
  std::int64_t step = -1;  // the last that was observed
  // s of each layer in it (on an accelerator: in the step before it); NaN where none came.
  std::vector<double> scores;
  std::vector<double> averages;  // NaN where no score ever came
  double gamma = 0;
  double threshold = 0;         // NaN while no layer has an average
  std::vector<bool> wanted;     // c as the threshold says
  std::vector<bool> mask;       // c of the last run(): after the budget
  std::int64_t changes = 0;     // of entries of `mask`, since the beginning
  std::int64_t not_finite = 0;  // scores left out so far: infinite, or not a number
  std::int64_t changed = 0;     // and for activations that were changed in place
  double error = 0;             // the largest relative error of the step's scores
  // Of the mask, by the measured layers; only with a budget.
  Bytes predicted_peak;
  std::chrono::duration<double> predicted_recompute{};
  // Whether the mask is the cheapest that fits: PgacOptions::searches, or because discarding by
  // rank did not lead below the budget.
  bool by_search = false;

  // Of the last run(): each layer's; without the lossy tier kKept or kRecomputed.
  std::vector<PgacRoute> routes;
  // Of the observed step, with the lossy tier: the estimated relative error of its gradients, and
  // the bytes of values that were parked, before and after (of its last run()).
  double gradient_error = 0;
  Bytes compressed_from, compressed_to;
};

class Pgac {
 public:
  // Throws UsageError, naming the option, for one that is out of range.
  explicit Pgac(const PgacOptions& options = {});
  ~Pgac();
  Pgac(Pgac&&) noexcept;
  Pgac& operator=(Pgac&&) noexcept;

  // Runs the layers one after another on x. Without grad mode they are simply run. Any number of
  // times between two observe(): for micro-batches. Throws UsageError if there are no layers, or
  // another number than before, or with a budget if others of them belong together or the first
  // writes to x; BudgetError, with the least bytes that would do, if no mask fits. In a region's
  // function the mask must not change between forward and backward: the recomputation would be
  // another one, and is refused with a DeterminismError.
  template <detail::IsLayers Model>
  at::Tensor run(const Model& layers, const at::Tensor& x) {
    return run_layers(detail::layers_of(layers), x);
  }

  // After backward of a step, numbered from 0: makes averages, threshold and the next mask. Throws
  // UsageError for a step below zero or, where the schedule goes by it, above options.steps.
  void observe(std::int64_t step);

  // Sets the wanted mask, one entry a layer, until the next observe() that has scores; the budget
  // holds all the same. Throws UsageError before the first run(), which tells how many layers there
  // are, and for a mask of another length.
  void set_mask(const std::vector<bool>& keep);

  // Forgets the scores since the last observe(): of a step that ended with an error, before it is
  // run again.
  void discard_step();

  const std::vector<PgacLayer>& layers() const;  // empty before the first run()
  PgacReport report() const;

  // What a resumed training needs to go on as if it had not ended, as JSON for its checkpoint:
  // averages, masks, the learned schedule, counters. Options must be the same, but for the budget
  // and `combine`. Measurements are taken anew; scores of a step that has not been observed (on an
  // accelerator: nor those of the last one) are not in it. restore() throws UsageError
  // "ORIGIN:LINE: field: reason" for a text that is not such a state, of other options, or whose
  // layers have other names than the model's.
  std::string state() const;
  void restore(const std::string& state, const std::string& origin = "state");

 private:
  at::Tensor run_layers(const detail::Layers& layers, const at::Tensor& x);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
