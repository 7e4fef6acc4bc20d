// Recurrent networks, packed ones too, transformers, embeddings, distances and losses.
#include "tests/sweep/module_cases.h"

namespace reprise::testing {
namespace {

namespace nn = torch::nn;
namespace rnn = torch::nn::utils::rnn;
using at::Tensor;

Tensor whole(at::IntArrayRef sizes, std::int64_t below) {
  return at::randint(below, sizes, at::kLong);
}

template <class Module>
ModuleCase recurrent(const char* name, const typename Module::ContainedType* = nullptr) {
  return {name, [](std::int64_t n) {
            using Options = std::decay_t<decltype(Module(nullptr)->options)>;
            return given(Module(Options(4, 6).num_layers(2).bidirectional(true).dropout(0.2)),
                         {leaf({5, n, 4})});
          }};
}

// Lengths and what is sorted by them are made by operators of the step.
template <class Module>
ModuleCase packed(const char* name) {
  return {name, [](std::int64_t n) {
            using Options = std::decay_t<decltype(Module(nullptr)->options)>;
            const std::int64_t steps = 6, batch = n + 1;
            Module module(Options(2, 3).bidirectional(true));
            MadeModule made{module.ptr(), {leaf({steps, batch, 2})}, nullptr};
            made.inputs.push_back(at::linspace(2, static_cast<double>(steps), batch).to(at::kLong));
            made.forward = [module](const Tensors& x) mutable {
              const auto sequence =
                  rnn::pack_padded_sequence(x[0], x[1], /*batch_first=*/false, false);
              const auto result = module->forward_with_packed_input(sequence);
              const auto [padded, lengths] = rnn::pad_packed_sequence(std::get<0>(result));
              Tensors all = flat(std::get<1>(result));
              all.push_back(padded);
              all.push_back(lengths);
              return all;
            };
            return made;
          }};
}

void add_recurrent(std::vector<ModuleCase>& all) {
  all.push_back(recurrent<nn::RNN>("RNN"));
  all.push_back(recurrent<nn::LSTM>("LSTM"));
  all.push_back(recurrent<nn::GRU>("GRU"));
  all.push_back(packed<nn::RNN>("PackedRNN"));
  all.push_back(packed<nn::LSTM>("PackedLSTM"));
  all.push_back(packed<nn::GRU>("PackedGRU"));
  all.push_back({"RNNCell", [](std::int64_t n) {
                   return given(nn::RNNCell(9, 40), {leaf({n, 9}), leaf({n, 40})});
                 }});
  all.push_back({"GRUCell", [](std::int64_t n) {
                   return given(nn::GRUCell(9, 40), {leaf({n, 9}), leaf({n, 40})});
                 }});
  all.push_back({"LSTMCell", [](std::int64_t n) {
                   return given(nn::LSTMCell(9, 40), {leaf({n, 9})});
                 }});
}

void add_attention(std::vector<ModuleCase>& all) {
  all.push_back({"MultiheadAttention", [](std::int64_t n) {
                   const auto options = nn::MultiheadAttentionOptions(8, 2).dropout(0.1);
                   return given(nn::MultiheadAttention(options),
                                {leaf({5, n, 8}), leaf({6, n, 8}), leaf({6, n, 8})});
                 }});
  all.push_back({"MultiheadSelfAttention", [](std::int64_t n) {
                   nn::MultiheadAttention module(nn::MultiheadAttentionOptions(8, 2));
                   MadeModule made{module.ptr(), {leaf({5, n, 8})}, nullptr};
                   made.forward = [module](const Tensors& x) mutable {
                     return flat(module->forward(x[0], x[0], x[0]));
                   };
                   return made;
                 }});
  const auto layer = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16);
  const auto other = nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16);
  all.push_back({"TransformerEncoderLayer", [=](std::int64_t n) {
                   return given(nn::TransformerEncoderLayer(layer), {leaf({5, n, 8})});
                 }});
  all.push_back(
      {"TransformerDecoderLayer", [=](std::int64_t n) {
         return given(nn::TransformerDecoderLayer(other), {leaf({5, n, 8}), leaf({6, n, 8})});
       }});
  all.push_back({"TransformerEncoder", [=](std::int64_t n) {
                   return given(nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 2)),
                                {leaf({5, n, 8})});
                 }});
  all.push_back({"TransformerDecoder", [=](std::int64_t n) {
                   return given(nn::TransformerDecoder(nn::TransformerDecoderOptions(other, 2)),
                                {leaf({5, n, 8}), leaf({6, n, 8})});
                 }});
  all.push_back({"Transformer", [](std::int64_t n) {
                   const auto options = nn::TransformerOptions(8, 2)
                                            .num_encoder_layers(1)
                                            .num_decoder_layers(1)
                                            .dim_feedforward(16);
                   return given(nn::Transformer(options), {leaf({5, n, 8}), leaf({6, n, 8})});
                 }});
}

void add_embeddings(std::vector<ModuleCase>& all) {
  all.push_back({"Embedding", [](std::int64_t n) {
                   return given(nn::Embedding(nn::EmbeddingOptions(9, 24).padding_idx(2)),
                                {whole({n, 4}, 9)});
                 }});
  all.push_back(
      {"SparseEmbedding", [](std::int64_t n) {
         return given(nn::Embedding(nn::EmbeddingOptions(9, 24).sparse(true)), {whole({n, 4}, 9)});
       }});
  all.push_back(
      {"NormedEmbedding", [](std::int64_t n) {
         return given(nn::Embedding(nn::EmbeddingOptions(9, 24).max_norm(0.5)), {whole({n, 4}, 9)});
       }});
  for (const bool sparse : {false, true}) {
    all.push_back({sparse ? "SparseEmbeddingBag" : "EmbeddingBag", [=](std::int64_t n) {
                     const auto options = nn::EmbeddingBagOptions(9, 40).sparse(sparse);
                     return given(nn::EmbeddingBag(options),
                                  {whole({3 * n}, 9), at::arange(n, at::kLong) * 2});
                   }});
  }
  all.push_back({"CosineSimilarity", [](std::int64_t n) {
                   return given(nn::CosineSimilarity(), {leaf({n, 9, 24}), leaf({n, 9, 24})});
                 }});
  all.push_back({"PairwiseDistance", [](std::int64_t n) {
                   return given(nn::PairwiseDistance(), {leaf({n, 40}), leaf({n, 40})});
                 }});
  all.push_back(
      {"AdaptiveLogSoftmaxWithLoss", [](std::int64_t n) {
         const nn::AdaptiveLogSoftmaxWithLossOptions options(24, 20, {5, 12});
         return given(nn::AdaptiveLogSoftmaxWithLoss(options), {leaf({n, 24}), whole({n}, 20)});
       }});
}

template <class Module>
ModuleCase loss(const char* name, std::function<Tensors(std::int64_t)> inputs) {
  return {name, [=](std::int64_t n) { return given(Module(), inputs(n)); }};
}

void add_losses(std::vector<ModuleCase>& all) {
  const auto pair = [](std::int64_t n) { return Tensors{leaf({n, 40}), leaf({n, 40})}; };
  const auto shares = [](std::int64_t n) {
    return Tensors{at::rand({n, 40}).mul_(0.9).add_(0.05).requires_grad_(), at::rand({n, 40})};
  };
  const auto signs = [](std::int64_t n) {
    return Tensors{leaf({n, 40}), at::randn({n, 40}).sign()};
  };
  const auto kinds = [](std::int64_t n) { return Tensors{leaf({n, 40}), whole({n}, 40)}; };
  const auto three = [](std::int64_t n) {
    return Tensors{leaf({n, 40}), leaf({n, 40}), leaf({n, 40})};
  };
  all.push_back(loss<nn::L1Loss>("L1Loss", pair));
  all.push_back(loss<nn::MSELoss>("MSELoss", pair));
  all.push_back(loss<nn::SmoothL1Loss>("SmoothL1Loss", pair));
  all.push_back(loss<nn::HuberLoss>("HuberLoss", pair));
  all.push_back(loss<nn::KLDivLoss>("KLDivLoss", shares));
  all.push_back(loss<nn::BCELoss>("BCELoss", shares));
  all.push_back(loss<nn::BCEWithLogitsLoss>("BCEWithLogitsLoss", shares));
  all.push_back(loss<nn::PoissonNLLLoss>("PoissonNLLLoss", shares));
  all.push_back(loss<nn::HingeEmbeddingLoss>("HingeEmbeddingLoss", signs));
  all.push_back(loss<nn::SoftMarginLoss>("SoftMarginLoss", signs));
  all.push_back(loss<nn::MultiLabelSoftMarginLoss>("MultiLabelSoftMarginLoss", shares));
  all.push_back(loss<nn::MultiMarginLoss>("MultiMarginLoss", kinds));
  all.push_back(loss<nn::CrossEntropyLoss>("CrossEntropyLoss", kinds));
  all.push_back(loss<nn::NLLLoss>("NLLLoss", kinds));
  all.push_back(loss<nn::MultiLabelMarginLoss>("MultiLabelMarginLoss", [](std::int64_t n) {
    return Tensors{leaf({n, 40}), at::randint(-1, 40, {n, 40}, at::kLong)};
  }));
  all.push_back(loss<nn::TripletMarginLoss>("TripletMarginLoss", three));
  all.push_back(loss<nn::TripletMarginWithDistanceLoss>("TripletMarginWithDistanceLoss", three));
  all.push_back(loss<nn::CosineEmbeddingLoss>("CosineEmbeddingLoss", [](std::int64_t n) {
    return Tensors{leaf({n, 40}), leaf({n, 40}), at::randn({n}).sign()};
  }));
  all.push_back(loss<nn::MarginRankingLoss>("MarginRankingLoss", [](std::int64_t n) {
    return Tensors{leaf({20 * n}), leaf({20 * n}), at::randn({20 * n}).sign()};
  }));
  all.push_back(loss<nn::CTCLoss>("CTCLoss", [](std::int64_t n) {
    return Tensors{at::randn({9, n, 7}).log_softmax(2).requires_grad_(), whole({n, 3}, 6) + 1,
                   at::full({n}, 8, at::kLong), at::full({n}, 2, at::kLong)};
  }));
}

}  // namespace

std::vector<ModuleCase> sequence_and_loss_modules() {
  std::vector<ModuleCase> all;
  add_recurrent(all);
  add_attention(all);
  add_embeddings(all);
  add_losses(all);
  return all;
}

}  // namespace reprise::testing
