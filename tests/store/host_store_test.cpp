// What is special about a host store: the order of things on the device's streams, what is held and
// how long, and the bounds.
#include "store/host_store.h"

#include "tests/store/fake_engine.h"
#include "tests/store/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using Log = std::vector<std::string>;

constexpr std::int64_t kFloatsInHost = 1000;
at::Tensor value_in_host(double filling) { return torch::full({kFloatsInHost}, filling); }

class HostStoreTest : public ::testing::Test {
 protected:
  std::shared_ptr<Store> make() {
    return store::make_host_store(options_, std::make_unique<FakeEngine>(device_));
  }
  Log take_log() { return std::exchange(device_->log, {}); }

  HostStoreOptions options_;
  Faults faults_;
  std::shared_ptr<FakeEngine::Device> device_ = std::make_shared<FakeEngine::Device>(faults_);
};

TEST_F(HostStoreTest, ParkingCopiesBehindWhatTheCallersStreamComputes) {
  const auto store = make();
  const auto parked = store->park(value_in_host(1));
  EXPECT_EQ(take_log(), (Log{"host memory 0", "record 0", "hold 1", "copy 1", "record 1"}));
}

TEST_F(HostStoreTest, LoadingCopiesBehindTheCopyToTheHostAndTheConsumerWaitsForIt) {
  const auto store = make();
  const auto parked = store->park(value_in_host(1));
  store->flush();
  take_log();
  const at::Tensor back = parked->load();
  EXPECT_EQ(take_log(), (Log{"memory 2", "hold 2", "copy 2", "record 2", "hold 0", "lend 0"}));
  EXPECT_TRUE(same_bits(back, value_in_host(1)));
}

TEST_F(HostStoreTest, PrefetchStartsTheCopyAndTheConsumerWaitsOnlyWhenItLoads) {
  const auto store = make();
  const auto parked = store->park(value_in_host(1));
  store->flush();
  take_log();
  EXPECT_TRUE(parked->prefetch());
  EXPECT_EQ(take_log(), (Log{"memory 2", "hold 2", "copy 2", "record 2"}));
  const at::Tensor back = parked->load();
  EXPECT_EQ(take_log(), (Log{"hold 0", "lend 0"}));
  EXPECT_TRUE(same_bits(back, value_in_host(1)));
}

// pytorch/torchtitan#2379: memory that was freed before its copy to the host had run.
TEST_F(HostStoreTest, TheSourceIsHeldUntilItsCopyHasRunAndNoLonger) {
  const auto store = make();
  const Bytes before = live_bytes();
  at::Tensor tensor = value_in_host(1);
  const Bytes one = live_bytes() - before;
  StorageWatch source(tensor);
  const auto parked = store->park(tensor);
  tensor.reset();
  EXPECT_TRUE(source.alive());
  EXPECT_EQ(store->statistics().waiting, Bytes(4 * kFloatsInHost));
  device_->run_everything();
  EXPECT_EQ(device_->violations, 0);
  const auto next = store->park(value_in_host(2));
  EXPECT_FALSE(source.alive()) << "the next call sees that the copy has ended";
  // Malloc's usable sizes differ by some bytes.
  EXPECT_NEAR((live_bytes() - before).count, 3 * one.count, 100)
      << "two copies in host memory, and one source";
}

TEST_F(HostStoreTest, HostMemoryIsHeldUntilTheCopiesHaveRunAlsoWhenTheValueIsDropped) {
  const auto store = make();
  store->park(value_in_host(1));
  auto parked = store->park(value_in_host(2));
  device_->run_everything();
  parked->prefetch();
  parked.reset();
  auto loaded = store->park(value_in_host(3));
  store->flush();
  loaded->prefetch();
  loaded.reset();
  device_->run_everything();
  EXPECT_EQ(device_->violations, 0);
}

TEST_F(HostStoreTest, WhatHasNotLeftYetIsGivenBackAsItIs) {
  const auto store = make();
  const at::Tensor tensor = value_in_host(1);
  const auto parked = store->park(tensor);
  take_log();
  EXPECT_TRUE(parked->prefetch());
  EXPECT_EQ(parked->load().const_data_ptr(), tensor.const_data_ptr());
  EXPECT_EQ(take_log(), (Log{"hold 0", "lend 0"})) << "another stream may have computed it";
  EXPECT_EQ(store->statistics().read, Bytes(0));
}

TEST_F(HostStoreTest, ParkingWaitsWhileTooManyBytesAreOnTheirWay) {
  options_.in_flight = Bytes(3 * 4 * kFloatsInHost);
  const auto store = make();
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (int i = 0; i < 10; ++i) {
    parked.push_back(store->park(value_in_host(i)));
    EXPECT_LE(store->statistics().waiting, options_.in_flight);
  }
  for (int i = 9; i >= 0; --i) {
    EXPECT_TRUE(same_bits(parked[static_cast<std::size_t>(i)]->load(), value_in_host(i)));
  }
}

TEST_F(HostStoreTest, PrefetchIsBoundedInBytes) {
  options_.read_ahead = Bytes(2 * 4 * kFloatsInHost);
  const auto store = make();
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (int i = 0; i < 4; ++i) parked.push_back(store->park(value_in_host(i)));
  store->flush();
  EXPECT_TRUE(parked[3]->prefetch());
  EXPECT_TRUE(parked[2]->prefetch());
  EXPECT_FALSE(parked[1]->prefetch());
  parked[3]->load();
  EXPECT_TRUE(parked[1]->prefetch());
}

TEST_F(HostStoreTest, AnyInterleavingOfTheStreamsGivesTheSameValues) {
  device_->at_random = true;
  options_.in_flight = Bytes(5 * 4 * kFloatsInHost);
  options_.read_ahead = Bytes(3 * 4 * kFloatsInHost);
  const auto store = make();
  std::mt19937 random(3);
  std::vector<std::pair<int, std::unique_ptr<ParkedTensor>>> parked;
  for (int i = 0; i < 2000; ++i) {
    const unsigned what = random() % 4;
    const std::size_t which = parked.empty() ? 0 : random() % parked.size();
    if (what == 0 || parked.empty()) {
      parked.emplace_back(i, store->park(value_in_host(i)));
    } else if (what == 1) {
      parked[which].second->prefetch();
    } else if (what == 2) {
      ASSERT_TRUE(same_bits(parked[which].second->load(), value_in_host(parked[which].first)));
    } else {
      parked.erase(parked.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  device_->run_everything();
  EXPECT_EQ(device_->violations, 0);
}

TEST_F(HostStoreTest, AFailureNamesTheBytesAndTheDevice) {
  const auto store = make();
  faults_.arm(3);
  const std::string text = error_of<StoreError>([&] { store->park(value_in_host(1)); });
  EXPECT_TRUE(contains(
      text,
      "host store: moving 4.0 KB between cpu and host memory failed: the fake device failed"));
  const auto parked = store->park(value_in_host(1));
  store->flush();
  faults_.arm(2);
  EXPECT_TRUE(contains(error_of<StoreError>([&] { parked->load(); }), "bringing back 4.0 KB"));
  EXPECT_TRUE(same_bits(parked->load(), value_in_host(1)));
}

TEST_F(HostStoreTest, RefusesTensorsThatAreNotOnTheAccelerator) {
  const auto store = make();
  c10::Storage storage(c10::Storage::use_byte_size_t(), 4,
                       c10::DataPtr(&options_, c10::Device("cuda:0")), nullptr, false);
  auto elsewhere = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>());
  elsewhere.unsafeGetTensorImpl()->set_sizes_contiguous({1});
  const std::string text = error_of<UsageError>([&] { store->park(elsewhere); });
  EXPECT_TRUE(contains(text, "host store does not take tensors on cuda:0; host_store() is for"));
}

TEST(HostStoreOptions, OutOfRangeAreRefused) {
  const auto make = [](const HostStoreOptions& options) {
    return store::make_host_store(options, nullptr);
  };
  HostStoreOptions options;
  options.in_flight = Bytes(-2);
  EXPECT_TRUE(contains(error_of<UsageError>([&] { make(options); }), "in_flight is -2 B"));
  options = {};
  options.read_ahead = Bytes(-2);
  EXPECT_TRUE(contains(error_of<UsageError>([&] { make(options); }), "read_ahead is -2 B"));
}

TEST(HostStoreOfThisProcess, NeedsAnAcceleratorAndNamesTheRemedy) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is one";
  const std::string text = error_of<UsageError>([] { host_store(); });
  EXPECT_TRUE(contains(text, "this process has no accelerator"));
  EXPECT_TRUE(contains(text, "use disk_store()"));
}

}  // namespace
}  // namespace reprise
