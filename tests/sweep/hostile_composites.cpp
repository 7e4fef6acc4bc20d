// Composites of LibTorch, and the rest of the library inside of a step.
#include <ATen/CPUGeneratorImpl.h>
#include <reprise/checkpoint.h>
#include <reprise/offload.h>
#include <reprise/saved_tensor_hooks.h>
#include <reprise/selective.h>
#include <reprise/store.h>

#include "tests/sweep/hostile_program.h"

namespace reprise::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using World = HostileWorld;

void packed_network(World& w) {
  const std::int64_t width = 8, gates[] = {4, 3, 1};
  const std::int64_t kind = w.number(3);
  Tensors weights;
  for (const std::int64_t columns : {kSide, width}) {
    weights.push_back(w.any()
                          .view({-1})
                          .narrow(0, 0, gates[kind] * width * columns)
                          .view({gates[kind] * width, columns}));
  }
  // 8 sequences of 8 steps at most.
  const Tensor lengths = std::get<0>(at::randint(1, 9, {8}, w.generator, at::kLong).sort(0, true));
  const auto [data, sizes] = at::_pack_padded_sequence(w.any().view({8, 8, kSide}), lengths, false);
  const Tensor state = at::zeros({1, 8, width});
  Tensor y;
  if (kind == 0) {
    y = std::get<0>(at::lstm(data, sizes, {state, state}, weights, false, 1, 0, true, false));
  } else if (kind == 1) {
    y = std::get<0>(at::gru(data, sizes, state, weights, false, 1, 0, true, false));
  } else {
    y = std::get<0>(at::rnn_tanh(data, sizes, state, weights, false, 1, 0, true, false));
  }
  const auto [padded, lengths_again] = at::_pad_packed_sequence(y, sizes, false, 0.25, 8);
  w.keep(lengths_again);
  w.add(w.any() + padded.reshape({-1}).narrow(0, 0, kSide));
}

void recurrent_network(World& w) {
  const Tensor state = at::zeros({2, 4, 16});
  const Tensors weights{
      w.any().narrow(0, 0, 48).narrow(1, 0, 16), w.any().narrow(0, 0, 48).narrow(1, 4, 16),
      w.any().narrow(0, 8, 48).narrow(1, 0, 16), w.any().narrow(0, 9, 48).narrow(1, 0, 16)};
  const auto [y, h] = at::gru(w.any().view({16, 4, kSide}).narrow(2, 0, 16), state.narrow(0, 0, 1),
                              {weights[0], weights[1]}, false, 1, 0.0, true, false, false);
  w.add(y.reshape({16, kSide}).repeat({4, 1}) * w.any());
}

void ctc(World& w) {
  const Tensor probabilities = w.any().view({16, 4, kSide}).log_softmax(2);
  const Tensor targets = at::randint(1, kSide, {4, 5}, w.generator, at::kLong);
  const Tensor lengths = at::randint(10, 17, {4}, w.generator, at::kLong);
  const Tensor counts = at::randint(1, 4, {2, 4}, w.generator, at::kLong) + 0;
  w.add(w.any() * at::ctc_loss(probabilities, targets, lengths, counts[1]).tanh());
}

void split(World& w) {
  const Tensor places = std::get<0>(at::randint(1, kSide, {3}, w.generator, at::kLong).sort());
  const Tensors parts = at::tensor_split(w.any() * 2, places, w.number(2));
  const bool rows = parts[0].size(1) == kSide;
  w.add(at::cat({parts[3], parts[1], parts[2], parts[0]}, rows ? 0 : 1));
  const Tensors more = at::tensor_split(w.any(), at::scalar_tensor(2, at::kLong) + 1, 0);
  w.add(at::cat({more[2], more[0], more[1]}).tanh());
}

void einsum(World& w) {
  const Tensor cube = w.any().view({4, 16, kSide});
  w.add(at::einsum("bik,bjk,kl->il", {cube, cube.tanh(), w.any()}).repeat({4, 1}).tanh());
  w.add(at::linalg_multi_dot({w.any(), w.any(), w.leaves[1]}).tanh());
}

void attention(World& w) {
  const auto heads = [](const Tensor& x) { return x.view({2, 32, 4, 16}).transpose(1, 2); };
  const Tensor q = w.any(), k = w.coin() ? q : w.any();
  std::optional<Tensor> mask;
  if (w.coin()) mask = at::rand({32, 32}, w.generator) > 0.2;
  const Tensor y = at::scaled_dot_product_attention(heads(q), heads(k), heads(w.any()), mask,
                                                    w.coin() ? 0.1 : 0.0);
  w.add(y.transpose(1, 2).reshape({kSide, kSide}));
}

void modules(World& w) {
  at::manual_seed(3);
  const Tensor x = w.any().view({4, 16, kSide});
  Tensor y;
  switch (w.number(4)) {
    case 0: {
      nn::MultiheadAttention module(nn::MultiheadAttentionOptions(kSide, 4).dropout(0.1));
      const auto [result, scores] = module->forward(x, x, x);
      w.keep(scores);
      y = result;
      break;
    }
    case 1: {
      nn::TransformerEncoderLayer layer(
          nn::TransformerEncoderLayerOptions(kSide, 4).dim_feedforward(32));
      y = nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 2))->forward(x);
      break;
    }
    case 2: {
      nn::LSTM module(nn::LSTMOptions(kSide, kSide / 2).bidirectional(true).num_layers(2));
      y = std::get<0>(module->forward(x));
      break;
    }
    default: {
      nn::BatchNorm1d norm(16);
      y = norm->forward(x) + nn::GELU()->forward(nn::Linear(kSide, kSide)->forward(x));
      w.keep(norm->running_mean);
    }
  }
  w.add(y.reshape({kSide, kSide}).tanh());
}

void embedding(World& w) {
  const Tensor indices = at::randint(kSide, {3 * kSide}, w.generator, at::kLong);
  const Tensor offsets = at::arange(kSide, at::kLong) * 3;
  const Tensor weights = at::rand({3 * kSide}, w.generator);
  const auto [y, bags, sizes, most] =
      at::embedding_bag(w.any(), indices, offsets, false, 0, false, weights);
  w.keep(sizes);
  w.add(y + at::embedding(w.any(), indices.narrow(0, 5, kSide)));
}

void counted(World& w) {
  const Tensor x = w.any();
  const Tensor whole = (x.detach() * 3).to(at::kLong);
  const auto [values, inverse, counts] = at::_unique2(whole, true, true, true);
  w.keep(values);
  w.keep(counts);
  const Tensor large = at::nonzero(x.detach() > 0.3);
  w.keep(large);
  w.add(x * (inverse.to(at::kFloat) / 9).tanh() + large.size(0) / 1000.0);
  w.add(w.any() + x.masked_select(x > 0.1).sum().tanh());
  w.keep(at::bincount(inverse.view({-1})));
  w.keep(at::repeat_interleave(counts.clamp(0, 3)));
}

void chosen(World& w) {
  const auto [values, places] = w.any().topk(8, 1);
  const c10::List<std::optional<Tensor>> rows{std::optional(places.select(1, 0)),
                                              std::optional(places.select(1, 1))};
  w.add(at::index_put(w.any().clone(), rows, values.select(1, 2), /*accumulate=*/w.coin()));
  w.add(w.any().scatter(1, places, values * 2) + w.any().gather(1, places).sum(1, true));
  const auto [sorted, order] = w.any().sort(0);
  w.add(sorted.index_select(0, order[3]));
}

// Experts that get as many rows as the scores say.
void experts(World& w) {
  const Tensor x = w.any();
  const auto [best, expert] = x.narrow(1, 0, 4).softmax(1).topk(2, 1);
  Tensor y = at::zeros_like(x);
  for (std::int64_t i = 0; i < 4; ++i) {
    const Tensor rows = at::nonzero((expert == i).any(1)).squeeze(1);
    if (rows.numel() == 0) continue;
    const Tensor share = (best * (expert == i)).sum(1).index_select(0, rows).unsqueeze(1);
    y = y.index_add(0, rows, x.index_select(0, rows).mm(w.leaves[1]).tanh() * share);
  }
  w.add(y);
}

Tensor block(const Tensor& x, const Tensor& m) {
  return at::layer_norm(at::dropout(x.mm(m).tanh(), 0.2, true).exp() + x, {kSide});
}

void regions(World& w) {
  CheckpointOptions options;
  options.determinism_check = DeterminismCheck::kValues;
  if (w.coin()) options.context = selective(save_matmuls(), {.reuse = true});
  const auto two = [](const Tensor& x, const Tensor& m) {
    return checkpoint(block, block(x, m), m);
  };
  w.add(w.coin() ? checkpoint(options, block, w.any(), w.leaves[1])
                 : checkpoint(two, w.any(), w.leaves[1]));
}

void offloaded(World& w) {
  std::shared_ptr<Store> store;
  switch (w.number(4)) {
    case 0:
      store = memory_store();
      break;
    case 1:
      store = disk_store({.folder = std::filesystem::temp_directory_path()});
      break;
    default:
      store = compressed_store();
  }
  const OffloadScope scope(store, Bytes(1));
  Tensor y = block(w.any(), w.leaves[1]).relu();
  y = at::dropout(y * w.any(), 0.5, true);
  w.add(block(y, w.leaves[1]));
}

void hooked(World& w) {
  const SavedTensorHooksScope scope([](const Tensor& t) { return t.clone(); },
                                    [](const Tensor& t) { return t.mul(1); });
  w.add(block(w.any(), w.leaves[1]));
}

// Another budget's, of which everything is dropped.
void step_inside(World& w) {
  MemoryBudget inner(GiB(64), {.min_bytes = Bytes(1), .paranoid = true});
  Tensor y;
  {
    auto step = inner.step();
    y = block(w.any(), w.leaves[1]).sin();
    step.finish();
  }
  w.add(y);
}

void second_derivative(World& w) {
  const Tensor y = (w.any() * w.leaves[1]).tanh().mm(w.any()).tanh();
  const Tensor slope = torch::autograd::grad({y.sum()}, {w.leaves[1]}, {}, true, true)[0];
  w.add((slope * w.any()).tanh());
}

// Past autograd, as programs do that write to what a graph has saved.
void optimizer(World& w) {
  const Tensor moment = w.any().detach().mul(0.1).add_(0.01);
  w.leaves[0].data().addcdiv_(moment, moment.square().sqrt().add_(1), -0.01);
  w.leaves[2].data().copy_(w.leaves[2].detach() * 0.99 + moment);
  w.add(w.any() * w.leaves[0]);
}

void complex_numbers(World& w) {
  const Tensor z = at::complex(w.any().tanh(), w.any().tanh());
  w.add(at::real(z.conj().matmul(z.t())).tanh());
}

void transformed(World& w) {
  const Tensor spectrum = at::fft_rfft(w.any(), std::nullopt, 1);
  w.add(at::fft_irfft(spectrum * 0.5, kSide, 1).tanh());
  w.add(at::stft(w.any().view({-1}), 64, 64, 64, at::hann_window(64), true, "reflect", false, true,
                 true)
            .abs()
            .narrow(0, 0, 32)
            .narrow(1, 0, kSide)
            .repeat({2, 1}));
}

void sparse(World& w) {
  const Tensor places = (at::rand({2, 40}, w.generator) * kSide).to(at::kLong);
  const Tensor matrix =
      at::sparse_coo_tensor(places, w.any().view({-1}).narrow(0, 7, 40), {kSide, kSide}).coalesce();
  w.add(at::_sparse_mm(matrix, w.any()).tanh());
}

}  // namespace

std::vector<HostilePart> composite_parts() {
  return {{"packed_network", packed_network},
          {"recurrent_network", recurrent_network},
          {"ctc", ctc},
          {"split", split},
          {"einsum", einsum},
          {"attention", attention, true},
          {"modules", modules, true},
          {"embedding", embedding},
          {"counted", counted},
          {"chosen", chosen},
          {"experts", experts},
          {"regions", regions, true},
          {"offloaded", offloaded, true},
          {"hooked", hooked, true},
          {"step_inside", step_inside, true},
          {"second_derivative", second_derivative},
          {"optimizer", optimizer},
          {"complex_numbers", complex_numbers},
          {"transformed", transformed},
          {"sparse", sparse}};
}

}  // namespace reprise::testing
