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
// budgets (reprise/memory_budget.h) manage it. Where nothing else saves a, that memory is kept for
// the score. The gradient itself is looked at and handed on: gradients are bitwise the same.
//
// PGAC (reprise/pgac.h) decides by these scores which layers are recomputed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace reprise {

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

}  // namespace reprise
