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
//   2.2  influence of layer l in step t    s = || d * a ||_2          (pgac.h)
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
//   inputs of a shape (reprise/sequential.h), scoring included, and the bytes of a mask are
//   arithmetic on that. While they are over the budget, the kept layer with the least rank goes. If
//   that does not lead below the budget (a long run needs as much when it is run again as when it
//   is kept), the mask that fits and discards the least sum of influence (or seconds, or their
//   product, as the ranking says) is taken. Only the first run may take more, where one layer alone
//   does.
//
// Threads: one thread calls run() and observe() at a time; backward may run on any.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/budget_extensions.h>
#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/sequential.h>

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
  // The most relative error of the step's gradients, |g' - g| / |g|; above 0. See above for what is
  // promised.
  double gradient_error = 1e-2;
  double int4_threshold = 0.5;  // from 0, no layer in 4 bits, to 1, all that are below tau
  // Steps from one audit to the next, in the mean, once audits pass; from 1 to 2^32.
  std::int64_t audit_every = 64;
  Bytes min_bytes = KiB(64);  // smaller values stay as they are
  std::int64_t block = 256;   // CompressedStoreOptions::block
  std::uint64_t seed = 0;     // of stochastic rounding, and of when audits are
};

// What happens to what a layer saves. From what changes nothing to what changes most, but for the
// last, which changes nothing either.
enum class PgacRoute : std::uint8_t { kKept, kBfloat16, kInt8, kInt4, kRecomputed };

struct PgacOptions {
  // Where a layer's average starts: at its first score, or at zero.
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
  Seconds predicted_recompute{};
  // Whether the mask is the cheapest that fits: PgacOptions::exact_search, or because discarding by
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

// Influence: how much the value of an activation has to do with the gradients that a step makes.
//
//   reprise::InfluenceMeter meter;
//   h = block->forward(x);
//   meter.watch(3, h);                       // in forward: the output of layer 3
//   loss.backward();
//   for (const auto& score : meter.take()) std::cout << score.layer << ' ' << score.value << '\n';
//
// The influence of an activation a with gradient d = dL/da is  s = || d * a ||_2,  the product
// taken element by element: what L would change by, to first order, if each element of a were
// scaled by itself. It is made in backward, when d has been made, from what is there anyway: a is
// saved through autograd, as an operator's backward would save it, so that it is the same memory
// that the next layer saves, and regions (reprise/checkpoint.h), stores (reprise/offload.h) and
// budgets (reprise/budget.h) manage it. Where nothing else saves a, that memory is kept for
// the score. The gradient itself is looked at and handed on: gradients are bitwise the same.
//
// PGAC (pgac.h) decides by these scores which layers are recomputed.

struct InfluenceOptions {
  // Of so many runs of 64 elements one, as if drawn, is looked at; 1: all. Beyond one the score is
  // an estimate, whose error InfluenceScore::error says. Only on the CPU, for real gradients and
  // activations of more than 1024 elements times the stride that lie in memory in the same order
  // without gaps; of others every element is looked at.
  std::int64_t stride = 1;
};

// || gradient * activation ||_2, computed now. Both of one shape, device and type: float, double,
// half, bfloat16, or complex of the first two. Products are summed in blocks of single precision
// (double precision where they or their squares would leave its range, and for double), blocks in
// double precision, always in the same order; no memory of the activation's size is taken. On an
// accelerator in single precision throughout (double for double), in pieces, of tensors that are
// not contiguous by way of a copy; no accelerator was there to try it on. Throws UsageError for
// anything else.
double influence_of(const at::Tensor& gradient, const at::Tensor& activation);

struct InfluenceScore {
  std::int64_t layer = 0;
  // The root of the sum of squares over all gradients that came since the last take(): of
  // micro-batches whose gradients add up, or of several backward passes over one graph. An
  // activation that is used several times has one gradient, the sum.
  double value = 0;
  // Of `value`, relative: the standard error of the estimate; 0 where every element was looked at.
  double error = 0;
  std::int64_t gradients = 0;  // that are in `value`
  // That were left out, for their score was infinite or not a number (on an accelerator: all of the
  // layer's, if one was).
  std::int64_t not_finite = 0;
  // That were left out because the activation was changed in place after watch(): what it was is
  // not there any more. (Watch what the change made of it.)
  std::int64_t changed = 0;
  // That came in a further backward pass, when the activation had gone with the first, which kept
  // no graph.
  std::int64_t missed = 0;
};

// Scores the activations of a step. watch() may be called on any thread, and backward may run on
// any; take() when no backward is under way. Moves; what was watched keeps its meter's memory
// alive.
class InfluenceMeter {
 public:
  // Throws UsageError for a stride below 1.
  explicit InfluenceMeter(const InfluenceOptions& options = {});
  ~InfluenceMeter();
  InfluenceMeter(InfluenceMeter&&) noexcept;
  InfluenceMeter& operator=(InfluenceMeter&&) noexcept;

  // When the gradient of `activation` has been made, adds its influence to the score of `layer`
  // (any number from 0). Nothing happens for a tensor without history (a leaf, or one that requires
  // no gradient), of integers, sparse, or without memory, and for sparse gradients. In a region's
  // function watch what it makes, not the arguments of the region. Throws UsageError for a layer
  // below zero.
  void watch(std::int64_t layer, const at::Tensor& activation) const;

  // The scores since the last call, by layer, and begins anew; only of layers whose gradients came.
  // On an accelerator nothing waits for the device: the scores are those that were there at the
  // call before.
  std::vector<InfluenceScore> take();
  // Forgets the scores since the last take(), of a step that ended with an error, say.
  void clear();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// PGAC for models without layers: a byte budget that drops sooner what has less influence on the
// gradients.
//
//   reprise::MemoryBudget budget{reprise::GiB(8), {.heuristic = reprise::Heuristic::kHDtr,
//                                                  .weights = reprise::influence_weights()}};
//
// A value's score h (BudgetOptions::heuristic) becomes  h * w,  where
//
//   s  = || d * a ||_2        the influence of the value a with gradient d = dL/da
//                             (pgac.h), made in backward
//   m <- alpha m + (1 - alpha) s      the moving average over steps, from the first s on
//   w  = max(m / mean of all m, min_weight)
//
// as PGAC has it of layers (pgac.h), with an operator call in a layer's place. A call is
// known again in the next steps by its kind (operator, shapes, whole numbers) and by how many of
// that kind came before it in the step: a step of another form keeps the averages of the calls that
// it has in common with others. Scores of several results of a call, and of several backward passes
// of a step, add their squares. A call that has no average yet weighs 1, as the mean of those that
// have; so does everything in a first step.
//
// A value is scored if its bytes are there when its gradient is; otherwise its average stays. So
// what is always dropped before backward reaches it keeps the average that it had. Scoring takes
// one pass over both tensors, no memory on the CPU, and leaves gradients bitwise what they are.

struct InfluenceWeightsOptions {
  // Of the moving average: 0 keeps the last score alone; below 1.
  double alpha = 0.9;
  // The least weight. With zero a value of no influence would go before any other, however dear it
  // is to make again; this bounds what influence can outweigh.
  double min_weight = 1e-2;
  // As InfluenceOptions::stride: of so many runs of 64 elements one is looked at.
  std::int64_t stride = 1;
};

// For one budget or several. Calls that no step has made for 64 steps are forgotten. On an
// accelerator scores are read one step late. Throws UsageError for alpha outside of [0, 1), for
// `min_weight` outside of [1e-6, 1], and for a stride below 1.
std::shared_ptr<ValueWeights> influence_weights(const InfluenceWeightsOptions& options = {});

}  // namespace reprise
