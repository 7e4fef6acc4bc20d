// PGAC, gradient-aware proactive activation checkpointing: layers whose activations have little
// influence on the gradients are recomputed, the others kept. It is research: docs/pgac.md says
// what measurements found.
//
//   reprise::Pgac pgac({.alpha = 0.9, .quantile = 0.5, .budget = reprise::MB(400)});
//   for (std::int64_t step = 0; step < steps; ++step) {
//     auto loss = loss_of(pgac.run(model, x));      // torch::nn::Sequential, or a list of blocks
//     loss.backward();
//     pgac.observe(step);
//     optimizer.step(); optimizer.zero_grad();
//   }
//
// The method, with the section numbers of its proposal ("Gradient-Aware Proactive Activation
// Checkpointing for Large-Scale Neural Network Training"):
//   2.2  influence of layer l in step t    s = || d * a ||_2          (InfluenceMeter, below)
//        its moving average                m_t = alpha m_{t-1} + (1 - alpha) s_t
//   2.3  threshold                         tau_t = gamma_t Quantile_q(m_t of all layers)
//   2.4  mask of the next step             c = 1, kept, where m_t >= tau_t, else 0
//   2.1  budget                            bytes of the step under c <= budget
//
// Gradients are bitwise those of the plain step under every mask: influence decides what is
// recomputed, never what is computed. Only the lossy tier (LossyOptions) changes gradients, and it
// is off unless you ask for it.
//
// - **Layers** are those of the model. A layer that writes to its input in place, or whose result
//   is a view of it, is one layer with the layer before, since neither can run again without the
//   other. So an activation that the next layer changes in place is scored after the change.
// - **Runs.** Neighbouring layers with c = 0 are one region (reprise/checkpoint.h) that starts at
//   the last activation kept. The run of zeros that ends the model is kept instead, as in
//   checkpoint_sequential(): backward needs it first.
// - **The first step** keeps all layers or, if that passes the budget, those cheapest to keep.
// - **The budget** is for what forward and backward of the model add to the bytes live before, as
//   in checkpoint_sequential(model, Bytes, x). The model is measured at its first run with inputs
//   of a shape, scoring included, and the bytes of a mask follow from that. While they are over the
//   budget, the kept layer of least rank is discarded. If that leads nowhere, the mask that fits
//   with the least discarded influence is taken (or seconds, or their product: PgacRanking). Only
//   the first run may take more, if one layer alone does.
//
// Thread rules: one thread calls run() and observe() at a time; backward may run on any.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/budget_extensions.h>
#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace reprise {

// The threshold's factor gamma over the training, as a function of the finished fraction (0 to 1).
struct GammaSchedule {
  enum class Kind : std::uint8_t {
    kConstant,  // first
    kLinear,    // from first to last, linear in the fraction
    kCosine,    // from first to last along half a cosine
    // first * exp(f(fraction)), where f is a network with one hidden layer of 8 (tanh) that starts
    // as zero. It is trained with the model by simultaneous perturbation (SPSA: Spall, IEEE
    // Transactions on Automatic Control 37, 1992). Each observed step compares the predicted
    // seconds of two masks, with the parameters moved a little to either side. Needs a budget.
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

// How the budget ranks kept layers; the layer of least rank is discarded before others.
enum class PgacRanking : std::uint8_t {
  kInfluence,           // the moving average: the proposal's
  kCost,                // seconds of forward per kept byte
  kInfluenceTimesCost,  // the product
  kRandom,  // numbers drawn once by PgacOptions::seed replace the averages, for comparisons
};

// The lossy tier: what a layer below the threshold saves for backward is kept in 8 or 4 bits
// instead of being recomputed (compressed_store(); as ActNN, arXiv:2104.14129, and GACT,
// arXiv:2206.11357). Gradients are then not those of the plain step.
//
//   reprise::Pgac pgac({.lossy = reprise::LossyOptions{.gradient_error = 1e-2}});
//
// The error of a step is |g' - g| / |g| over the gradients of all parameters of the layers, with g
// those of the exact step. Parameters before the first layer and after the last do not count.
//
// - A step is compressed only if at least eight audits measured what noise in each layer does, the
//   step looks like three audited ones, and its most expected error is at most `gradient_error`.
//   Otherwise it is exact. No single step has a guarantee: what only backward shows is not known
//   when the step is compressed. PgacReport::gradient_error says afterwards what the error was.
// - An audited step is exact in all its runs and takes about three steps' seconds more. It needs
//   the inputs of all layers, one layer's values twice, and all parameters' gradients twice more.
//   Where that does not fit in the budget, every step is exact.
// - An audit above `gradient_error`, a layer that cannot be audited, and 16 audits in a row without
//   finite gradients or memory switch the tier off for good. PgacReport::lossy_off says why.
// - With a budget the bytes come first: a value with more noise than was planned stays compressed,
//   and the report says so.
// - observe() reads the gradients of the parameters: call it before they are zeroed. Layers must
//   give the same result when they run again. Hooks on parameters are called once.
//
// docs/pgac.md ("The lossy tier") has the formulas, the margins, and what is refused.
struct LossyOptions {
  // The most relative error of a step's gradients, |g' - g| / |g|; above 0.
  double gradient_error = 1e-2;
  // Layers below this times the threshold are kept in 4 bits, the other discarded ones in 8. From 0
  // (none) to 1 (all). Values that are a mask or mostly zeros stay exact.
  double int4_threshold = 0.5;
  // Steps from one audit to the next, in the mean, once audits pass; from 1 to 2^32.
  std::int64_t audit_every = 64;

  // -- Rarely needed

  Bytes min_bytes = KiB(64);  // smaller values stay as they are
  std::int64_t block = 256;   // CompressedStoreOptions::block
  std::uint64_t seed = 0;     // of stochastic rounding, and of when audits are
};

// How the values that a layer saves are treated. The first four are ordered from the one that
// changes nothing to the one that changes most; the last changes nothing either.
enum class PgacRoute : std::uint8_t { kKept, kBfloat16, kInt8, kInt4, kRecomputed };

struct PgacOptions {
  // A layer's average starts at its first score, or at zero.
  enum class Start : std::uint8_t { kFirstScore, kZero };

  // -- Which layers are kept

  double alpha = 0.9;     // of the moving average; at least 0 and below 1
  double quantile = 0.5;  // q, from 0 to 1; linear between two averages, as NumPy's default
  GammaSchedule gamma = {};
  // The steps of the training, required unless `gamma` is constant: observe(step) evaluates `gamma`
  // at the fraction step / steps.
  std::int64_t steps = 0;

  // -- Bytes

  std::optional<Bytes> budget = {};  // none: the threshold alone decides
  PgacRanking ranking = PgacRanking::kInfluence;
  // While the budget has room, keep discarded layers again, those of highest rank first.
  bool fill_budget = false;
  // Take the cheapest of all masks that fit in the budget: the one whose discarded layers have the
  // least sum of influence, seconds or their product, as `ranking` says. With PgacRanking::kCost
  // this is the fastest mask that exists. The threshold is reported and decides nothing.
  bool exact_search = false;
  // Keep layers below the threshold in fewer bits, which changes gradients; none: they are exact.
  std::optional<LossyOptions> lossy = {};

  // -- Rarely needed

  Start start = Start::kFirstScore;
  // Follow the proposal's pseudocode where it differs from its formulas: averages start at zero,
  // whatever `start` says and for layers without any score too, and the threshold is taken when
  // only the last layer's average is new.
  bool follow_pseudocode = false;
  // Discard a kept layer when its average is below tau (1 - hysteresis), and keep a discarded one
  // again at or above tau (1 + hysteresis); at least 0 and below 1.
  double hysteresis = 0;
  std::int64_t steps_between_changes = 1;  // least observed steps between two changes of the mask
  std::int64_t stride = 1;                 // InfluenceOptions::stride
  std::uint64_t seed = 0;  // for the draws of a learned gamma and of PgacRanking::kRandom
  // One threshold for several processes, each with its copy of the model. observe() calls it with
  // this process's averages (NaN for none), and it replaces them, by an all-reduce for instance;
  // twice with `follow_pseudocode`. Report and state keep this process's own averages. Masks that
  // budgets correct may still differ. UsageError if it changes the number of averages.
  std::function<void(std::vector<double>& averages)> combine = {};
};

// One layer of the method, which may stand for several layers of the model.
struct PgacLayer {
  std::string name;
  std::int64_t first = 0, count = 1;  // the layers of the model that it stands for
};

struct PgacReport {
  // -- The last observed step, with an entry for each layer

  std::int64_t step = -1;  // its number
  // s in this step (on an accelerator: in the step before it); NaN if no score came.
  std::vector<double> scores;
  std::vector<double> averages;  // NaN if no score ever came
  double gamma = 0;
  double threshold = 0;         // NaN while no layer has an average
  std::vector<bool> wanted;     // c by the threshold
  std::vector<bool> mask;       // c of the last run(), after the budget
  std::int64_t changes = 0;     // changed entries of `mask` since the beginning
  std::int64_t not_finite = 0;  // scores left out so far: infinite, or not a number
  std::int64_t changed = 0;     // scores left out so far: the activation was changed in place
  double error = 0;             // the largest relative error of the step's scores
  // Predicted for the mask from the measured layers; only with a budget.
  Bytes predicted_peak;
  Seconds predicted_recompute{};
  // The mask is the cheapest that fits, by PgacOptions::exact_search, or because discarding by rank
  // did not lead below the budget.
  bool by_search = false;
  // Each layer's route in the last run(): kKept or kRecomputed without the lossy tier.
  std::vector<PgacRoute> routes;

  // -- The lossy tier in the observed step

  double gradient_error = 0;             // the most expected relative error of the gradients
  Bytes compressed_from, compressed_to;  // parked bytes before and after, in its last run()
  bool is_known = true;                  // all layers' inputs were like audited ones
  bool audited = false;

  // -- The lossy tier since the beginning

  std::int64_t audits = 0;
  std::int64_t audit_failures = 0;  // audits that found more than the bound
  // The error that the last audit measured: -1 if there was none, 0 if nothing would have been
  // compressed.
  double audited_error = -1;
  std::vector<bool> refused;  // layers that stay exact, because their error has heavy tails
  std::string lossy_off;      // the reason why the tier is switched off; empty if it is not
};

class Pgac {
 public:
  // Throws UsageError, with the option, for a value out of range.
  explicit Pgac(const PgacOptions& options = {});
  ~Pgac();
  Pgac(Pgac&&) noexcept;
  Pgac& operator=(Pgac&&) noexcept;

  // Runs the layers one after another on x; without grad mode simply so. It may be called any
  // number of times between two observe(), for micro-batches. In a region's function the mask must
  // not change between forward and backward, or the recomputation is a DeterminismError.
  //
  // Throws UsageError if there are no layers, or another number than before. Throws it with a budget
  // if other layers belong together than before, or the first one writes to x. Throws BudgetError,
  // with the least bytes that suffice, if no mask fits.
  template <detail::IsLayers Model>
  at::Tensor run(const Model& layers, const at::Tensor& x) {
    return run_layers(detail::layers_of(layers), x);
  }
  // The same for layers that no C++ type stands for; not for direct use.
  at::Tensor run_layers(const detail::Layers& layers, const at::Tensor& x);

  // Call it after backward of each step, numbered from 0: makes averages, threshold and the next
  // mask. Throws UsageError for a step below zero, or above options.steps if gamma depends on it.
  void observe(std::int64_t step);

  // Sets the wanted mask, one entry a layer, until the next observe() that has scores. The budget
  // still holds. Throws UsageError before the first run(), which finds the layers, and for a mask
  // of another length.
  void set_mask(const std::vector<bool>& keep);

  // Forgets the scores since the last observe(). Call it after a step that ended with an error,
  // before the step runs again.
  void discard_step();

  const std::vector<PgacLayer>& layers() const;  // empty before the first run()
  PgacReport report() const;

  // The state of a resumed training, as JSON for its checkpoint: averages, masks, the learned
  // schedule, counters. Layers are measured anew. Scores of a step that was not observed are lost;
  // on an accelerator also those of the last observed step. With the lossy tier the first step
  // after restore() is exact.
  //
  // restore() needs the same options, except for the budget and `combine`. It throws UsageError
  // "ORIGIN:LINE: field: reason" for a text that is no state, has other options, or names other
  // layers than the model's.
  std::string state() const;
  void restore(const std::string& state, const std::string& origin = "state");

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// -- Influence: how much an activation matters for the gradients of a step
//
//   reprise::InfluenceMeter meter;
//   h = block->forward(x);
//   meter.watch(3, h);                       // in forward: the output of layer 3
//   loss.backward();
//   for (const auto& score : meter.take()) std::cout << score.layer << ' ' << score.value << '\n';
//
// The influence of an activation a with gradient d = dL/da is  s = || d * a ||_2,  with the product
// taken element by element. To first order this is the change of L if each element of a were scaled
// by itself.
//
// The score is computed in backward, when d is complete. a is saved through autograd, so it is the
// memory that the next layer saves. Regions, stores and budgets manage it. If nothing else saves a,
// its memory is kept for the score. The gradient is passed on unchanged.

struct InfluenceOptions {
  // Looks at one run of 64 elements in this many, at places that look random; 1: at all. Above 1
  // the score is an estimate with InfluenceScore::error. It applies on the CPU, for real tensors of
  // more than 1024 elements times the stride that lie in the same order without gaps.
  std::int64_t stride = 1;
};

// || gradient * activation ||_2, computed now. Both tensors have one shape, device and type: float,
// double, half, bfloat16, or complex of the first two. Throws UsageError for anything else.
//
// Products are summed in blocks of single precision, and blocks in double precision, always in the
// same order. Blocks are in double precision for double, and if values or squares leave the range
// of single precision. No memory of the activation's size is taken. On an accelerator, sums are in
// single precision (double for double), in pieces, and tensors that are not contiguous are copied;
// nobody has run this on one.
double influence_of(const at::Tensor& gradient, const at::Tensor& activation);

struct InfluenceScore {
  std::int64_t layer = 0;
  // The root of the sum of squares over all gradients since the last take(): of micro-batches, or
  // of several backward passes over one graph. An activation with several uses has one gradient,
  // the sum.
  double value = 0;
  double error = 0;            // relative standard error of `value`; 0 without sampling
  std::int64_t gradients = 0;  // summed in `value`

  // -- Gradients left out

  // The score was infinite or not a number (on an accelerator: all of the layer's, if one was).
  std::int64_t not_finite = 0;
  // The activation was changed in place after watch(). Watch the result of the change instead.
  std::int64_t changed = 0;
  // The first backward pass kept no graph, so a further pass did not find the activation.
  std::int64_t missed = 0;
};

// Scores the activations of a step. watch() may be called on any thread, and backward may run on
// any; call take() when no backward is under way. A meter can be moved, and what it watches keeps
// its memory alive.
class InfluenceMeter {
 public:
  // Throws UsageError for a stride below 1.
  explicit InfluenceMeter(const InfluenceOptions& options = {});
  ~InfluenceMeter();
  InfluenceMeter(InfluenceMeter&&) noexcept;
  InfluenceMeter& operator=(InfluenceMeter&&) noexcept;

  // Adds the influence of `activation` to the score of `layer` (from 0) when its gradient has been
  // made. Nothing happens for a tensor without history, of integers, sparse or without memory, and
  // for sparse gradients. In a region's function watch what it makes, not the region's arguments.
  // Throws UsageError for a layer below zero.
  void watch(std::int64_t layer, const at::Tensor& activation) const;

  // The scores since the last call, by layer, for layers whose gradients came. On an accelerator
  // nothing waits for the device: the scores are those of the call before.
  std::vector<InfluenceScore> take();
  // Forgets the scores since the last take(), for instance after a step that ended with an error.
  void clear();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// -- PGAC for models without layers: a byte budget that drops values of less influence sooner
//
//   reprise::MemoryBudget budget{reprise::GiB(8), {.heuristic = reprise::Heuristic::kHDtr,
//                                                  .weights = reprise::influence_weights()}};
//
// A value's score h (BudgetOptions::heuristic) becomes  h * w,  where
//
//   s  = || d * a ||_2        the influence of the value a with gradient d = dL/da
//   m <- alpha m + (1 - alpha) s      the moving average over steps, from the first s on
//   w  = max(m / mean of all m, min_weight)
//
// An operator call takes a layer's place. Calls of later steps are matched by their kind (operator,
// shapes, whole numbers) and by how many of that kind came before. Steps of another form keep the
// averages of common calls. Scores of several results, and of several backward passes, add their
// squares. A call without an average weighs 1, the mean; in a first step all calls do.
//
// A value is scored if it has its bytes when its gradient is made; otherwise its average stays.
// Scoring takes one pass over both tensors, and no memory on the CPU. Gradients stay bitwise equal.

struct InfluenceWeightsOptions {
  double alpha = 0.9;  // of the moving average; 0 keeps the last score alone; below 1
  // The least weight. It bounds how much influence can outweigh: with zero, a value without
  // influence would be dropped before any other, however long it takes to compute.
  double min_weight = 1e-2;
  std::int64_t stride = 1;  // InfluenceOptions::stride
};

// Makes weights for one budget or several. Calls that no step has made for 64 steps are forgotten.
// On an accelerator scores are read one step late. Throws UsageError for alpha outside of [0, 1),
// for `min_weight` outside of [1e-6, 1], and for a stride below 1.
std::shared_ptr<ValueWeights> influence_weights(const InfluenceWeightsOptions& options = {});

}  // namespace reprise
