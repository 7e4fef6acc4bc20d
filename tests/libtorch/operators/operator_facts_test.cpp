// What the library knows about LibTorch's operators: that it has an answer for each of them, and
// that the answers are true where schemas are silent.
#include "libtorch/operators/operator_facts.h"

#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <string>
#include <thread>
#include <vector>

namespace reprise::libtorch {
namespace {

c10::OperatorHandle handle(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}
const OperatorFacts& facts(const char* name, const char* overload = "") {
  return facts_of(handle(name, overload));
}

std::vector<std::string> written(const char* name, const char* overload = "") {
  const c10::OperatorHandle op = handle(name, overload);
  std::vector<std::string> names;
  for (const auto& write : facts_of(op).writes) {
    names.push_back(op.schema().arguments()[write.argument].name());
    if (write.only_if != OperatorFacts::kNone) {
      names.back() += " if " + op.schema().arguments()[write.only_if].name();
    }
  }
  return names;
}
using Names = std::vector<std::string>;

TEST(OperatorFacts, EveryOperatorOfLibTorchIsClassified) {
  std::size_t asked = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    ++asked;
    EXPECT_EQ(doubt_about(*op), "") << c10::toString(op->schema());
  }
  EXPECT_GT(asked, 3000u);
}

TEST(OperatorFacts, OperatorsThatOnlyComputeDoNothingElse) {
  for (const char* name : {"aten::mm", "aten::relu", "aten::native_layer_norm", "aten::bmm"}) {
    EXPECT_FALSE(facts(name).writes_or_draws()) << name;
    EXPECT_FALSE(facts(name).aliases) << name;
    EXPECT_FALSE(facts(name).metadata_only) << name;
  }
}

TEST(OperatorFacts, WhatMayCopyIsNoMereView) {
  for (const char* name : {"aten::reshape", "aten::contiguous", "aten::flatten"}) {
    EXPECT_FALSE(facts(name, name == std::string("aten::flatten") ? "using_ints" : "").only_views)
        << name;
  }
  EXPECT_FALSE(facts("aten::to", "dtype").only_views);
  EXPECT_TRUE(facts("aten::view").only_views);
  EXPECT_TRUE(facts("aten::slice", "Tensor").only_views);
  EXPECT_TRUE(facts("aten::detach").only_views);
}

TEST(OperatorFacts, WritesAreReadFromTheSchema) {
  EXPECT_EQ(written("aten::relu_"), Names{"self"});
  EXPECT_EQ(written("aten::mm", "out"), Names{"out"});
  EXPECT_EQ(written("aten::_foreach_add_", "List"), Names{"self"});
  EXPECT_EQ(written("aten::topk", "values"), (Names{"values", "indices"}));
  EXPECT_EQ(written("aten::rrelu_with_noise"), Names{"noise"});
  EXPECT_EQ(written("aten::_fused_moving_avg_obs_fq_helper"),
            (Names{"running_min", "running_max", "scale", "zero_point"}));
}

TEST(OperatorFacts, WritesThatSchemasDoNotTellAreKnown) {
  for (const char* name :
       {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}) {
    EXPECT_EQ(written(name), (Names{"running_mean if training", "running_var if training"}));
  }
  EXPECT_EQ(written("aten::batch_norm_update_stats"), (Names{"running_mean", "running_var"}));
  EXPECT_EQ(written("aten::native_batch_norm", "out"),
            (Names{"out", "save_mean", "save_invstd", "running_mean if training",
                   "running_var if training"}));
  EXPECT_EQ(written("aten::_copy_from"), Names{"dst"});
  EXPECT_EQ(written("aten::_cudnn_rnn"), Names{"dropout_state if train"});
}

TEST(OperatorFacts, AWriteThatStandsInTheSchemaIsNotListedTwice) {
  EXPECT_EQ(written("aten::_native_batch_norm_legit"), (Names{"running_mean", "running_var"}));
}

TEST(OperatorFacts, RandomDrawsAreKnownWithAndWithoutAGenerator) {
  EXPECT_TRUE(facts("aten::native_dropout").draws_random);
  EXPECT_EQ(facts("aten::native_dropout").generator, OperatorFacts::kNone);
  EXPECT_TRUE(facts("aten::bernoulli_", "float").draws_random);
  EXPECT_EQ(facts("aten::bernoulli_", "float").generator, 2);
  EXPECT_EQ(facts("aten::randn", "generator").generator, 1);
  EXPECT_FALSE(facts("aten::add", "Tensor").draws_random);
}

TEST(OperatorFacts, ViewsAreToldFromCopiesAndFromQuestions) {
  EXPECT_TRUE(facts("aten::view").aliases);
  EXPECT_TRUE(facts("aten::split", "Tensor").aliases);
  EXPECT_TRUE(facts("aten::_unsafe_view").aliases);
  EXPECT_TRUE(facts("aten::detach").aliases);
  EXPECT_FALSE(facts("aten::clone").aliases);
  EXPECT_FALSE(facts("aten::relu_").aliases);
  EXPECT_FALSE(facts("aten::view").metadata_only);
  EXPECT_TRUE(facts("aten::sym_size", "int").metadata_only);
  EXPECT_TRUE(facts("aten::is_pinned").metadata_only);
  EXPECT_FALSE(facts("aten::_local_scalar_dense").metadata_only);
}

TEST(OperatorFacts, ChangesOfShapeAreToldFromChangesOfData) {
  for (const char* name : {"aten::t_", "aten::unsqueeze_", "aten::resize_", "aten::set_data"}) {
    EXPECT_TRUE(facts(name).changes_shape) << name;
    EXPECT_TRUE(facts(name).writes_no_data) << name;
  }
  for (const char* name : {"aten::resize_", "aten::set_", "aten::set_data"}) {
    EXPECT_TRUE(facts(name).changes_memory) << name;
  }
  EXPECT_FALSE(facts("aten::t_").changes_memory);
  EXPECT_FALSE(facts("aten::detach_").changes_memory);
  EXPECT_FALSE(facts("aten::copy_").changes_shape);
  EXPECT_FALSE(facts("aten::copy_").writes_no_data);
}

TEST(OperatorFacts, ResultsThatHoldWhatNobodyHasSetAreKnown) {
  EXPECT_TRUE(facts("aten::_ctc_loss").leaves_bytes_unset);
  EXPECT_FALSE(facts("aten::_ctc_loss").unrepeatable);
  EXPECT_TRUE(facts("aten::linalg_lstsq").unrepeatable);
  EXPECT_FALSE(facts("aten::linalg_solve").unrepeatable);
}

TEST(OperatorFacts, BatchNormReallyWritesToTheRunningStatistics) {
  for (const bool training : {true, false}) {
    const at::Tensor mean = torch::zeros({3});
    const at::Tensor variance = torch::ones({3});
    at::native_batch_norm(torch::randn({4, 3}), {}, {}, mean, variance, training, 0.1, 1e-5);
    EXPECT_EQ(mean.ne(0).any().item<bool>(), training);
    EXPECT_EQ(variance.ne(1).any().item<bool>(), training);
  }
  const at::Tensor mean = torch::zeros({3});
  const at::Tensor variance = torch::ones({3});
  at::batch_norm_update_stats(torch::randn({4, 3}), mean, variance, 0.1);
  EXPECT_TRUE(mean.ne(0).any().item<bool>());
}

TEST(OperatorFacts, OperatorsWithHiddenViewsReallyShareMemory) {
  const at::Tensor x = torch::randn({4, 3});
  EXPECT_TRUE(at::_unsafe_view(x, {12}).is_alias_of(x));
  EXPECT_TRUE(at::unsafe_split(x, 2)[1].is_alias_of(x));
  EXPECT_TRUE(at::lift(x).is_alias_of(x));
}

TEST(OperatorFacts, AnOperatorThatComesAnewIsAskedAnew) {
  for (const bool writes : {true, false}) {
    auto library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, "reprise_facts",
                                                    std::nullopt, __FILE__, __LINE__);
    library->def(writes ? "anew(Tensor(a!) x) -> Tensor(a!)" : "anew(Tensor x) -> Tensor");
    EXPECT_EQ(facts("reprise_facts::anew").writes.size(), writes ? 1u : 0u);
  }
}

TEST(OperatorFacts, AnOperatorOfUnknownEffectIsNamedWithTheReason) {
  torch::Library library(torch::Library::FRAGMENT, "reprise_facts", std::nullopt, __FILE__,
                         __LINE__);
  const auto doubt = [&](const char* name, const std::string& signature) {
    library.def((name + signature).c_str());
    return doubt_about(handle((std::string("reprise_facts::") + name).c_str()));
  };
  EXPECT_EQ(doubt("fine", "(Tensor x, Tensor(a!) running_mean) -> Tensor"), "");
  EXPECT_NE(doubt("hidden", "(Tensor x, Tensor running_mean) -> Tensor").find("running_mean"),
            std::string::npos);
  EXPECT_NE(doubt("into", "(Tensor x, Tensor[] out) -> Tensor").find("out"), std::string::npos);
  EXPECT_NE(doubt("change_", "(Tensor x) -> Tensor").find("ends"), std::string::npos);
  EXPECT_NE(doubt("silent", "(Tensor x) -> ()").find("no tensor"), std::string::npos);
  EXPECT_NE(doubt("stray", "(Tensor x) -> Tensor(a)").find("memory"), std::string::npos);
  EXPECT_NE(doubt("all", "(...) -> Tensor").find("list"), std::string::npos);
}

TEST(OperatorFacts, ThreadsMayAskAtOnce) {
  std::vector<std::thread> threads;
  std::vector<std::size_t> writing(4);
  for (std::size_t& count : writing) {
    threads.emplace_back([&count] {
      for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
        const auto op = c10::Dispatcher::singleton().findSchema(name);
        if (op && !facts_of(*op).writes.empty()) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(writing[0], 1000u);
  EXPECT_EQ(writing, std::vector<std::size_t>(4, writing[0]));
}

TEST(OperatorNames, APacketStandsForAllItsOverloads) {
  const c10::OperatorName add("aten::add", "Tensor");
  for (const char* text : {"add", "aten::add", "add.Tensor", "aten::add.Tensor"}) {
    EXPECT_TRUE(is_named(add, text)) << text;
  }
  for (const char* text :
       {"add.Scalar", "ad", "aten::ad", "add_", "my::add", "add.", "", "addTensor"}) {
    EXPECT_FALSE(is_named(add, text)) << text;
  }
}

TEST(OperatorNames, DefaultIsTheOverloadWithoutAName) {
  EXPECT_TRUE(is_named({"aten::mm", ""}, "aten::mm.default"));
  EXPECT_FALSE(is_named({"aten::mm", "out"}, "aten::mm.default"));
  EXPECT_TRUE(is_named({"my::mm", ""}, "my::mm"));
  EXPECT_FALSE(is_named({"my::mm", ""}, "mm"));
}

TEST(OperatorNames, ANameOfNoOperatorIsTold) {
  EXPECT_TRUE(names_operator("mm"));
  EXPECT_TRUE(names_operator("aten::scaled_dot_product_attention"));
  EXPECT_FALSE(names_operator("mmm"));
  EXPECT_FALSE(names_operator("mm.nothing"));
}

}  // namespace
}  // namespace reprise::libtorch
