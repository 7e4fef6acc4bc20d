// A host store over LibTorch's own streams and events, as far as a device without operators goes.
#include <gtest/gtest.h>
#include <reprise/error.h>
#include <reprise/store.h>
#include <torch/torch.h>

#include <string>

#include "libtorch/memory/transfer_engine.h"
#include "tests/fake_device/fake_device.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using testing_support::fake;

TEST(HostStore, IsForTheAcceleratorThatTheProcessHas) {
  const auto store = host_store();
  const std::string text = refusal_of([&] { store->park(torch::ones({3})); });
  EXPECT_NE(text.find("does not take tensors on cpu"), std::string::npos) << text;
  EXPECT_TRUE(store->takes(fake(3)));
  EXPECT_EQ(store->statistics().count, 0);
}

TEST(TransferEngine, GivesTheStreamsAndEventsOfTheAccelerator) {
  const auto engine = libtorch::accelerator_engine();
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->serves(fake(2)));
  EXPECT_FALSE(engine->serves(c10::kCPU));
  const c10::Stream current = engine->current(fake(2));
  EXPECT_EQ(current.device(), fake(2));
  const auto event = engine->record(current);
  EXPECT_TRUE(event->reached());
  event->hold_back(engine->current(fake(2)));
}

}  // namespace
}  // namespace reprise
