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
// - **What is promised.** A step is compressed only if all this holds; else it is exact:
//   1. Eight audits (below) or more have measured what noise in each layer does.
//   2. The step looks like three audited ones: the norms of the layers' parameters within 10 %, and
//      of each layer's input the size, the root mean square (25 %), the mean, the mean and the
//      largest absolute element (a factor of 2 by the root mean square). This is checked before a
//      layer is compressed. A layer whose input shows a new regime is kept, and so are those after
//      it; layers that ran before it stay compressed.
//   3. The most that the error is expected to be is at most `gradient_error`.
//   A step that looks like no other is exact however often such a step comes, until three of them
//   were audited.
// - **Error** is |g' - g| / |g| over the gradients of all parameters of the layers, g those of the
//   exact step. Parameters before the first layer or after the last are not in it. Rounding at
//   random, without bias, adds noise to what backward reads. With n_j the noise in what layer j
//   saves (known from what it holds; relative squares), the most expected error is
//     error^2 = R sum_j C_j n_j.
//   C_j is the upper limit of what noise in layer j does, as audits find it, R that of what they
//   measure of the whole step by what their own C_j come to: of the last 32 audits the worst, or 3
//   + 11 / n standard deviations of the logarithms above the mean, whichever is more (a tolerance
//   limit: 99 % of a log-normal distribution, with 95 % confidence). C_j grows with the largest
//   (score of the layer)^2 / |g|^2 of the last 32 steps, since noise in gradients that cancel does
//   not cancel. |g| is read in observe() from the parameters: call it before they are zeroed. A
//   value that would bring more noise than was planned (10 % to spare) is kept exact.
// - **Refused layers** are exact: those whose error is carried by fewer than 64 elements of a
//   gradient in more than a quarter of the audits, whose C_j are further apart than a factor of e
//   (one standard deviation), or above 10^4. Errors with such tails are bounded by no number of
//   measurements.
// - **Audits.** A step that is audited is exact in all its runs. Layers run as regions; in backward
//   each is run once more and its gradients are made four times: with and without noise in its
//   values, from the step's own gradient and from that which the lossy step would have had there.
//   So the whole step's real error is measured, one layer after the other. An audit needs all
//   layers' inputs, one layer's values twice and all parameters' gradients twice more, and takes
//   about three times a step's seconds more. Audits are made in the first steps (but for the
//   second, in which all layers are kept, to see which have hooks inside), then at steps drawn at
//   random, `audit_every` apart in the mean once they pass, and where a step is unknown from its
//   beginning, for one step in eight in the long run. An audit that measures more than
//   `gradient_error` in routes that would have been run switches the tier off for good:
//   PgacReport::lossy_off says why. So does a layer that cannot be audited: it has hooks on tensors
//   inside, retains gradients there, its function holds a reentrant region, its gradients are
//   sparse or complex, or the first layer writes to the model's input. An audit without finite
//   gradients, or short of memory, tells nothing: the next one comes later, up to `audit_every`
//   apart in the mean, and 16 such audits in a row switch the tier off too.
// - **With which confidence.** None for one step by itself: what only backward shows (another loss,
//   other targets) is not known when a step is compressed. PgacReport::gradient_error is made anew
//   in observe(), with the step's own noise and gradients: where it is above the bound, leave out
//   the optimizer's step if the bound must hold. Of many steps: audits at drawn steps are a sample
//   of them, so after k of them without a failure, with 95 % confidence fewer than 3 / k of such
//   steps pass the bound (1 - 0.05^(1/k)).
// - **Budget.** Where the layers so routed need more than the budget, those of least rank take a
//   route of fewer bits, as long as the error stays in its bound, and then the rest is as without
//   the tier: the kept layer of least rank is run again. Where an audit does not fit in the budget,
//   all steps are exact. The bytes come first: whether a step is exact is decided at its start, by
//   the model's input and the parameters; a layer further on in a new regime, or a value with more
//   noise than was planned, stays compressed, and the report says so (`is_known`,
//   `gradient_error`).
// - Hooks on parameters are called once, as without the tier. Layers must give the same result when
//   they are run again, as for a region.
struct LossyOptions {
  // The most relative error of the step's gradients, |g' - g| / |g|; above 0. See above for what is
  // promised.
  double gradient_error = 1e-2;
  double far = 0.5;          // from 0, no layer in 4 bits, to 1, all that are below tau
  Bytes minimum = KiB(64);   // smaller values stay as they are
  std::int64_t block = 256;  // CompressedStoreOptions::block
  std::uint64_t seed = 0;    // of stochastic rounding, and of when audits are
  // Steps from one audit to the next, in the mean, once audits pass; from 1 to 2^32.
  std::int64_t audit_every = 64;
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
  // With the lossy tier. Of the observed step: the most that the relative error of its gradients is
  // expected to be, the bytes of values that were parked, before and after (of its last run()),
  // whether all layers' inputs were like audited ones, and whether it was audited itself.
  double gradient_error = 0;
  Bytes compressed_from, compressed_to;
  bool is_known = true;
  bool audited = false;
  // Since the beginning: audits, those that found more than the bound, and the error that the last
  // one measured (-1: none yet; of a step in which nothing was to be compressed 0).
  std::int64_t audits = 0, audit_failures = 0;
  double audited_error = -1;
  std::vector<bool> refused;  // layers that are exact, since their error has heavy tails
  std::string lossy_off;      // why the tier is switched off; empty: it is not
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
  // accelerator: nor those of the last one) are not in it. With the lossy tier the first step after
  // restore() is exact: the weights are not known before it has run. restore() throws UsageError
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
