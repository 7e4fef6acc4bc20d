// Predicted peaks of recurrent layers that are made of LibTorch's own cells, beside measured ones.
#include <gmock/gmock.h>
#include <reprise/estimate.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/estimate/measured.h"

namespace reprise {
namespace {

namespace nn = torch::nn;

struct RecurrentCase {
  std::string name;
  std::function<void(at::ScalarType)> compare;
  at::ScalarType dtype = at::kFloat;
};

class PredictedRecurrentPeak : public ::testing::TestWithParam<RecurrentCase> {};

TEST_P(PredictedRecurrentPeak, IsThatOfTheRealStep) { GetParam().compare(GetParam().dtype); }

template <class Layer>
std::function<void(at::ScalarType)> of(const Layer& prototype, bool is_batch_first = false) {
  return [=](at::ScalarType dtype) {
    Layer layer = prototype;
    layer->to(dtype);
    const auto x =
        is_batch_first ? at::rand({8, 20, 64}).to(dtype) : at::rand({20, 8, 64}).to(dtype);
    const auto loss = [&] { return std::get<0>(layer->forward(x)).square().mean(); };
    testing::expect_near(estimate_step(*layer, loss), testing::measured_peak(*layer, loss));
  };
}

std::vector<RecurrentCase> recurrent_cases() {
  return {
      {"Gru", of(nn::GRU(nn::GRUOptions(64, 128)))},
      {"GruBatchFirst", of(nn::GRU(nn::GRUOptions(64, 128).batch_first(true)), true)},
      {"GruDeepBothWays",
       of(nn::GRU(nn::GRUOptions(64, 96).num_layers(2).dropout(0.2).bidirectional(true)))},
      {"GruWithoutBias", of(nn::GRU(nn::GRUOptions(64, 128).bias(false)))},
      {"RnnTanh", of(nn::RNN(nn::RNNOptions(64, 128).num_layers(2)))},
      {"RnnRelu", of(nn::RNN(nn::RNNOptions(64, 128).nonlinearity(torch::kReLU)))},
      {"LstmProjected", of(nn::LSTM(nn::LSTMOptions(64, 128).proj_size(32)))},
      {"LstmProjectedBothWays",
       of(nn::LSTM(nn::LSTMOptions(64, 96).proj_size(32).num_layers(2).bidirectional(true)))},
      {"LstmOfDoubles", of(nn::LSTM(nn::LSTMOptions(64, 128))), at::kDouble},
  };
}

INSTANTIATE_TEST_SUITE_P(All, PredictedRecurrentPeak, ::testing::ValuesIn(recurrent_cases()),
                         [](const auto& info) { return info.param.name; });

// Another device has an operator of its own; here its cells are estimated.
TEST(EstimateStep, TakesRecurrentLayersOnOtherDevices) {
  nn::GRU layer(nn::GRUOptions(8, 16).batch_first(true));
  const auto x = at::rand({2, 5, 8});
  const Estimate found =
      estimate_step(*layer, [&] { return std::get<0>(layer(x)).sum(); }, {.device = c10::kCUDA});
  EXPECT_GT(found.activations, Bytes(0));
}

}  // namespace
}  // namespace reprise
