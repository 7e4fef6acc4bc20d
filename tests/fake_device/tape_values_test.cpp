// What a byte budget on an accelerator may drop and what it may not, and the streams that read it.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <reprise/store.h>
#include <torch/library.h>

#include "libtorch/memory/transfer_engine.h"
#include "tests/fake_device/tape_testing.h"

namespace reprise {
namespace {

using namespace testing_support;
using ::testing::Contains;
using ::testing::IsEmpty;

// A collective by its name.
TORCH_LIBRARY_FRAGMENT(symm_mem, library) { library.def("reprise_read(Tensor tensor) -> ()"); }
TORCH_LIBRARY_IMPL(symm_mem, PrivateUse1, library) {
  library.impl("reprise_read", [](const at::Tensor&) {});
}

class DeviceValues : public OnFakeDevice {
 protected:
  at::Tensor x_ = at::randn({40, 50}).to(fake(0));
  // A step in which every read is a replay.
  MemoryBudget budget_{GiB(1), paranoid_on_fake()};
};

void let_wait(c10::Stream stream, c10::Stream earlier) {
  c10::Event event(c10::kPrivateUse1);
  event.record(earlier);
  event.block(stream);
}

TEST_F(DeviceValues, CopiesAcrossDevicesAreRoots) {
  at::Tensor buffer = at::ones({40, 50});
  auto step = budget_.step();
  const at::Tensor copy = buffer.to(fake(0));
  at::Tensor into = at::empty({40, 50}, x_.options());
  into.copy_(buffer);
  at::Tensor number = at::empty({}, x_.options());
  at::Tensor source = at::ones({});
  number.copy_(source);
  const at::Tensor doubled = copy * 2 + into + number;
  for (const at::Tensor& root : {copy, into, number}) EXPECT_NO_THROW(root.const_data_ptr());
  // The buffer is used for the next batch.
  buffer.fill_(7);
  source.fill_(7);
  EXPECT_TRUE(same_bits(copy + doubled + into, at::full({40, 50}, 6.0)));
  EXPECT_GT(budget_.report().replayed, 0);
  step.finish();
}

TEST_F(DeviceValues, NumbersOnTheHostAreKeptAsTheyWere) {
  auto step = budget_.step();
  at::Tensor factor = at::scalar_tensor(3.0);
  const at::Tensor y = x_ * factor;
  const at::Tensor z = y.add(0.25).mul(1.5);
  factor.fill_(100);
  EXPECT_TRUE(same_bits(z, x_.cpu().mul(3.0).add(0.25).mul(1.5)));
  EXPECT_GE(budget_.report().replayed, 3);
  step.finish();
}

TEST_F(DeviceValues, MemoryOfOthersIsNotDropped) {
  std::vector<float> theirs(2000, 1.0F);
  c10::Storage storage(c10::Storage::use_byte_size_t(), theirs.size() * sizeof(float),
                       c10::DataPtr(theirs.data(), fake(0)), nullptr, /*resizable=*/false);
  const at::Tensor foreign = at::empty({0}, x_.options()).set_(storage, 0, {2000}, {1});
  auto step = budget_.step();
  const at::Tensor y = foreign * 2;
  const auto dropped = budget_.report().dropped;
  theirs.assign(2000, 5.0F);
  EXPECT_TRUE(same_bits(y.add(0), at::full({2000}, 2.0))) << "as it was when it was computed";
  EXPECT_EQ(dropped, 0);
  step.finish();
}

TEST_F(DeviceValues, ViewsChangesInPlaceAndOutsAreMadeAgain) {
  const auto f = [](const at::Tensor& x) {
    at::Tensor y = x.sin();
    const at::Tensor early = y.cos();
    y.mul_(2).add_(early);
    at::Tensor part = y.narrow(0, 3, 10).t();
    part.relu_();
    at::Tensor out = at::empty({0}, x.options());
    at::mm_out(out, y, y.t());
    const auto [values, indices] = out.max(1);
    return Tensors{y, early, part.contiguous(), out, values, indices, at::cat({y, early}, 1)};
  };
  auto step = budget_.step();
  const Tensors mine = f(x_);
  step.finish();
  EXPECT_GT(budget_.report().replayed, 10);
  EXPECT_TRUE(same_bits(mine, f(x_.cpu())));
}

TEST_F(DeviceValues, APinKeepsTheBytes) {
  auto step = budget_.step();
  const at::Tensor y = x_.sin();
  const Pin pin(y);
  const void* const data = y.const_data_ptr();
  const at::Tensor z = y.cos();
  EXPECT_EQ(y.const_data_ptr(), data);
  EXPECT_ANY_THROW(z.const_data_ptr());
  step.finish();
}

TEST_F(DeviceValues, ReplaysRunWhereTheReaderRunsAndOtherStreamsWaitForThem) {
  const c10::Stream first = current_fake_stream();
  const c10::Stream second = new_fake_stream();
  auto step = budget_.step();
  const at::Tensor y = x_.sin();
  let_wait(second, first);
  std::optional<Pin> pin;
  at::Tensor z;
  {
    const c10::StreamGuard guard(second);
    z = y.cos();
    // Made again on the second stream, and stays.
    pin.emplace(y);
  }
  // The program has no reason to have the first one wait: it is there that y was made.
  const at::Tensor w = y.exp();
  let_wait(first, second);
  EXPECT_TRUE(same_bits(w + z, x_.cpu().sin().exp() + x_.cpu().sin().cos()));
  pin.reset();
  step.finish();
}

TEST_F(DeviceValues, StreamsThatReadAreNamedBeforeBytesAreGivenUp) {
  const c10::Stream first = current_fake_stream();
  const c10::Stream second = new_fake_stream();
  const WorkIsLate late;
  MemoryBudget budget(live_bytes(fake(0)) + KiB(40), on_fake());
  auto step = budget.step();
  at::Tensor y = x_.sin();
  EXPECT_THAT(FakeMemory::named(), IsEmpty());
  let_wait(second, first);
  at::Tensor z;
  {
    const c10::StreamGuard guard(second);
    z = y.cos();
  }
  EXPECT_THAT(FakeMemory::named(), Contains(second.id()));
  // Dropped for this while the second stream still reads it.
  std::vector<at::Tensor> more;
  for (int i = 0; i < 6; ++i) more.push_back(x_.tan());
  EXPECT_GT(budget.report().dropped, 0);
  FakeStreams::of(0).get_there();
}

// What is brought back at a step's end is made on a stream that the program has no reason to wait
// for.
TEST_F(DeviceValues, WhatAStepsEndBringsBackIsThereForAllItsStreams) {
  const c10::Stream first = current_fake_stream();
  const c10::Stream second = new_fake_stream();
  let_wait(second, first);
  at::Tensor y;
  {
    auto step = budget_.step();
    {
      const c10::StreamGuard guard(second);
      y = x_ * 2;
    }
    step.finish();
  }
  EXPECT_GT(budget_.report().replayed, 0);
  {
    const c10::StreamGuard guard(second);
    const at::Tensor read = y + 1;
    y = at::Tensor();
    EXPECT_THAT(FakeMemory::hazards(), IsEmpty());
  }
  let_wait(first, second);
}

// Nor does the program know of the copy of what a root was.
TEST_F(DeviceValues, OtherStreamsWaitForTheOldBytesOfARoot) {
  const c10::Stream first = current_fake_stream();
  const c10::Stream second = new_fake_stream();
  at::Tensor root = at::ones({50}).to(fake(0));
  auto step = budget_.step();
  const at::Tensor y = x_ * root;
  let_wait(second, first);
  root.add_(1);
  at::Tensor z;
  {
    const c10::StreamGuard guard(second);
    z = y.exp();
  }
  EXPECT_THAT(FakeMemory::hazards(), IsEmpty());
  let_wait(first, second);
  EXPECT_TRUE(same_bits(z, x_.cpu().exp()));
  step.finish();
}

TEST_F(DeviceValues, OneStreamIsNamedToNobody) {
  Network network(fake(0), 3, 64);
  MemoryBudget budget(network.limit_at(0.6), on_fake());
  network.gradients_under(budget);
  EXPECT_GT(budget.report().replayed, 0);
  EXPECT_THAT(FakeMemory::named(), IsEmpty());
}

TEST_F(DeviceValues, TheProgramsOwnRecordStreamReachesTheAllocator) {
  const c10::Stream second = new_fake_stream();
  MemoryBudget budget(GiB(1), on_fake());
  auto step = budget.step();
  const at::Tensor y = x_.sin();
  y.record_stream(second);
  EXPECT_THAT(FakeMemory::named(), Contains(second.id()));
  step.finish();
  MemoryBudget all_gone(GiB(1), paranoid_on_fake());
  auto another = all_gone.step();
  x_.sin().record_stream(second);
  another.finish();
}

TEST_F(DeviceValues, StoresNameTheirStreamsForManagedMemory) {
  const auto engine = libtorch::accelerator_engine();
  const c10::Stream second = new_fake_stream();
  MemoryBudget budget(GiB(1), on_fake());
  auto step = budget.step();
  engine->lend(x_.sin(), second);
  EXPECT_THAT(FakeMemory::named(), Contains(second.id()));
  step.finish();
}

TEST_F(DeviceValues, StepsOnASideStreamAreExact) {
  Network network(fake(0), 3, 64);
  const Tensors plain = network.gradients();
  const c10::Stream side = new_fake_stream();
  let_wait(side, current_fake_stream());
  {
    const c10::StreamGuard guard(side);
    EXPECT_TRUE(same_bits(network.gradients(), plain));
    EXPECT_THAT(FakeMemory::hazards(), IsEmpty());
    EXPECT_TRUE(same_bits(network.gradients_under(budget_), plain));
  }
  let_wait(current_fake_stream(), side);
}

TEST_F(DeviceValues, CostsComeFromEventsThatAreReachedLate) {
  Network network(fake(0), 3, 64);
  const Tensors plain = network.gradients();
  MemoryBudget budget(network.limit_at(0.6), on_fake());
  {
    const WorkIsLate late;
    network.gradients_under(budget);
  }
  FakeStreams::of(0).get_there();
  EXPECT_TRUE(same_bits(network.gradients_under(budget), plain));
  // What the fake device's clock says: a microsecond and more for each.
  EXPECT_GT(budget.report().replay_time.count(),
            1e-6 * static_cast<double>(budget.report().replayed));
}

TEST_F(DeviceValues, GoToTheHostWhereThatIsSooner) {
  // Each would be made by a chain of operators.
  const auto chain = [&] {
    Tensors all;
    at::Tensor y = x_;
    for (int i = 0; i < 40; ++i) all.push_back(y = at::mm(y, y.t()).mm(y) * 1e-3);
    return at::cat(all);
  };
  const at::Tensor plain = chain();
  BudgetOptions options = paranoid_on_fake();
  options.store = host_store();
  MemoryBudget budget(GiB(1), options);
  auto step = budget.step();
  EXPECT_TRUE(same_bits(chain(), plain));
  EXPECT_GT(budget.report().parked, 0);
  EXPECT_GT(budget.report().loaded, 0);
  step.finish();
}

TEST_F(DeviceValues, AStoreThatDoesNotTakeTheDevicesTensorsIsRefused) {
  BudgetOptions options = on_fake();
  options.store = disk_store({.folder = ::testing::TempDir()});
  const auto text = testing::error_of<UsageError>([&] { MemoryBudget budget(GiB(1), options); });
  EXPECT_THAT(text, ::testing::HasSubstr("fake:0; give it a host_store()"));
}

TEST_F(DeviceValues, WhatACollectiveWasGivenStaysUntilTheStepEnds) {
  static const auto read = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("symm_mem::reprise_read", "")
                               .typed<void(const at::Tensor&)>();
  MemoryBudget budget(GiB(1), on_fake());
  const Bytes before = live_bytes(fake(0));
  auto step = budget.step();
  at::Tensor y = x_.sin();
  const Bytes with_y = live_bytes(fake(0));
  read.call(y);
  y.reset();
  EXPECT_EQ(live_bytes(fake(0)), with_y);
  step.finish();
  EXPECT_EQ(live_bytes(fake(0)), before);
}

TEST_F(DeviceValues, WithoutEventsCostsAreByBytes) {
  Network network(fake(0), 3, 64);
  const Tensors plain = network.gradients();
  FakeStreams::has_events = false;
  MemoryBudget budget(network.limit_at(0.6), on_fake());
  auto mine = network.gradients_under(budget);
  FakeStreams::has_events = true;
  EXPECT_TRUE(same_bits(mine, plain));
  EXPECT_GT(budget.report().replay_time.count(), 0);
}

}  // namespace
}  // namespace reprise
