// What is special about a disk store: what it frees and when, its bounds, its order, its file.
#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/store/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using Fault = FaultyFile::Fault;
namespace fs = std::filesystem;

constexpr std::int64_t kFloats = 2048;  // of one 8 KB value, a block
at::Tensor value(double filling) { return torch::full({kFloats}, filling); }

// A gate that operations of a file wait at until it is opened.
class Gate {
 public:
  void open() { set(true); }
  void close() { set(false); }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --waiting_;
  }
  // Until an operation waits at it.
  void await_operation() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

 private:
  void set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

class DiskStoreTest : public ::testing::Test {
 protected:
  // A store whose writes and reads wait at gates, and whose file does what `fault` says when armed.
  std::shared_ptr<Store> make(Fault fault = Fault::kError) {
    auto file =
        std::make_unique<FaultyFile>(store::open_block_file(options_.folder), faults_, fault);
    file->on_write = [this] { writes_.pass(); };
    file->on_read = [this](std::int64_t offset) {
      reads_.pass();
      const std::lock_guard lock(mutex_);
      read_offsets_.push_back(offset);
    };
    return store::make_disk_store(options_, std::move(file));
  }
  DiskStoreOptions options_ = small_disk();
  Faults faults_;
  Gate writes_, reads_;
  std::mutex mutex_;
  std::vector<std::int64_t> read_offsets_;
};

TEST_F(DiskStoreTest, FreesTheMemoryOfWhatIsParked) {
  const auto store = make();
  const Bytes before = live_bytes();
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (int i = 0; i < 20; ++i) parked.push_back(store->park(value(i)));
  store->flush();
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(store->statistics().written, Bytes(20 * 4 * kFloats));
}

TEST_F(DiskStoreTest, ParkingWaitsWhileTooMuchWaitsToBeWritten) {
  options_.in_flight = KiB(16);
  const auto store = make();
  const Bytes before = live_bytes();
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (int i = 0; i < 30; ++i) {
    parked.push_back(store->park(value(i)));
    EXPECT_LE(store->statistics().waiting, KiB(16));
    EXPECT_LE(live_bytes() - before, KiB(16) + Bytes(2 * 64));
  }
}

TEST_F(DiskStoreTest, WithoutRoomInMemoryParkingWrites) {
  options_.in_flight = Bytes(0);
  const auto store = make();
  const auto parked = store->park(value(1));
  EXPECT_EQ(store->statistics().written, Bytes(4 * kFloats));
  EXPECT_EQ(store->statistics().waiting, Bytes(0));
}

TEST_F(DiskStoreTest, WhatStillWaitsIsLoadedFromMemory) {
  const auto store = make();
  writes_.close();
  const at::Tensor tensor = value(1);
  const auto parked = store->park(tensor);
  EXPECT_TRUE(parked->prefetch());
  EXPECT_EQ(parked->load().const_data_ptr(), tensor.const_data_ptr());
  EXPECT_EQ(store->statistics().read, Bytes(0));
  writes_.open();
}

TEST_F(DiskStoreTest, WhatIsDroppedWhileItWaitsIsNotWritten) {
  options_.workers = 1;
  const auto store = make();
  writes_.close();
  auto first = store->park(value(0));  // may be on its way already
  const Bytes before = live_bytes();
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (int i = 0; i < 5; ++i) parked.push_back(store->park(value(i)));
  parked.clear();
  EXPECT_EQ(live_bytes(), before);
  writes_.open();
  store->flush();
  EXPECT_EQ(store->statistics().written, Bytes(4 * kFloats));
}

TEST_F(DiskStoreTest, PrefetchBringsAValueIntoMemoryBeforeItIsLoaded) {
  const auto store = make();
  const auto parked = store->park(value(1));
  store->flush();
  const Bytes before = live_bytes();
  EXPECT_TRUE(parked->prefetch());
  EXPECT_TRUE(parked->prefetch()) << "asking again is no second read";
  store->flush();
  EXPECT_GE(live_bytes() - before, Bytes(4 * kFloats));
  reads_.close();
  EXPECT_TRUE(same_bits(parked->load(), value(1)));
  reads_.open();
  EXPECT_EQ(store->statistics().read, Bytes(4 * kFloats));
  EXPECT_EQ(live_bytes(), before) << "the caller alone holds what was loaded";
}

TEST_F(DiskStoreTest, PrefetchIsBoundedInBytesAndTakesAtLeastOne) {
  options_.read_ahead = KiB(16);
  const auto store = make();
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (int i = 0; i < 4; ++i) parked.push_back(store->park(value(i)));
  const auto large = store->park(torch::ones({10 * kFloats}));
  store->flush();
  EXPECT_TRUE(parked[3]->prefetch());
  EXPECT_TRUE(parked[2]->prefetch());
  EXPECT_FALSE(parked[1]->prefetch());
  parked[3]->load();
  EXPECT_TRUE(parked[1]->prefetch()) << "loading makes room";
  EXPECT_FALSE(parked[0]->prefetch());
  parked.resize(1);
  EXPECT_TRUE(large->prefetch()) << "so does dropping; and one is taken whatever its size";
  EXPECT_FALSE(parked[0]->prefetch());
}

TEST_F(DiskStoreTest, ReadsInTheOrderOfTheHintsButFirstWhatSomebodyWaitsFor) {
  options_.workers = 1;
  const auto store = make();
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (int i = 0; i < 5; ++i) parked.push_back(store->park(value(i)));
  store->flush();
  reads_.close();
  for (const std::size_t i : {4, 3, 2, 1}) parked[i]->prefetch();
  std::thread waits([&] { parked[1]->load(); });
  std::thread waits_too([&] { parked[0]->load(); });
  reads_.open();
  waits.join();
  waits_too.join();
  store->flush();
  const std::int64_t block = 4 * kFloats;
  ASSERT_EQ(read_offsets_.size(), 5u);
  // When the two threads came is not known, but the hints keep their order.
  std::vector<std::int64_t> hinted;
  for (const std::int64_t offset : read_offsets_) {
    if (offset >= 2 * block) hinted.push_back(offset);
  }
  EXPECT_EQ(hinted, (std::vector<std::int64_t>{4 * block, 3 * block, 2 * block}));
}

TEST_F(DiskStoreTest, ThreadsThatWaitForOneValueAllGetIt) {
  const auto store = make();
  const auto parked = store->park(value(1));
  store->flush();
  reads_.close();
  parked->prefetch();
  std::vector<std::thread> threads;
  std::vector<at::Tensor> loaded(3);
  for (at::Tensor& result : loaded) threads.emplace_back([&] { result = parked->load(); });
  reads_.open();
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& result : loaded) EXPECT_TRUE(same_bits(result, value(1)));
}

TEST_F(DiskStoreTest, TheCapIsOnWhatIsParkedAndItsErrorNamesAllOfIt) {
  options_.byte_cap = KiB(20);
  const auto store = make();
  auto first = store->park(value(1));
  const auto second = store->park(value(2));
  const std::string text = error_of<StoreError>([&] { store->park(value(3)); });
  for (const char* part : {"parking 8.2 KB", "the cap of 20.5 KB", "16.4 KB are in use",
                           "raise DiskStoreOptions.byte_cap, or park less"}) {
    EXPECT_TRUE(contains(text, part));
  }
  EXPECT_EQ(store->statistics().count, 2);
  first.reset();
  const auto third = store->park(value(3));
  EXPECT_TRUE(same_bits(third->load(), value(3)));
}

TEST_F(DiskStoreTest, AFlippedBitIsFoundByTheChecksum) {
  const auto store = make(Fault::kFlippedBit);
  const auto parked = store->park(value(1));
  store->flush();
  faults_.arm(0);
  const std::string text = error_of<StoreError>([&] { parked->load(); });
  EXPECT_TRUE(contains(text, "reading 8.2 KB at offset 0 of a file in " + options_.folder));
  EXPECT_TRUE(contains(text, "the checksum is not that of what was written"));
  EXPECT_TRUE(same_bits(parked->load(), value(1))) << "the next read is another one";
}

TEST_F(DiskStoreTest, AFullDiskIsToldOnceAtTheNextParkWithItsRemedy) {
  const auto store = make(Fault::kFull);
  faults_.arm(0, /*forever=*/true);
  auto parked = store->park(value(1));
  const std::string text = error_of<StoreError>([&] { store->flush(); });
  EXPECT_TRUE(contains(text, "writing 8.2 KB at offset 0 of a file in " + options_.folder));
  EXPECT_TRUE(contains(text, "No space left on device; free some room, give another folder"));
  EXPECT_TRUE(contains(error_of<StoreError>([&] { parked->load(); }), "No space left"));
  faults_.disarm();
  const auto next = store->park(value(2));
  store->flush();
  EXPECT_TRUE(same_bits(next->load(), value(2)));
}

TEST_F(DiskStoreTest, AFailureOfSomethingDroppedMeanwhileIsNotTold) {
  const auto store = make(Fault::kFull);
  writes_.close();
  faults_.arm(0);
  auto parked = store->park(value(1));
  // Or nothing would be written, and the fault be left for the next one.
  writes_.await_operation();
  parked.reset();
  writes_.open();
  store->flush();
  EXPECT_EQ(faults_.struck(), 1);
  EXPECT_TRUE(same_bits(store->park(value(2))->load(), value(2)));
}

TEST_F(DiskStoreTest, AFileThatEndsEarlyIsAShortRead) {
  const auto store = make(Fault::kNothing);
  const auto parked = store->park(value(1));
  store->flush();
  faults_.arm(0);
  EXPECT_TRUE(contains(error_of<StoreError>([&] { parked->load(); }), "only 0 of 8192 bytes"));
  faults_.arm(0);
  const auto unwritten = store->park(value(1));
  EXPECT_TRUE(contains(error_of<StoreError>([&] { store->flush(); }), "only 0 of 8192 bytes"));
}

TEST_F(DiskStoreTest, OperationsThatMoveOnlyAPartAreContinued) {
  options_.block = KiB(32);
  const auto store = make(Fault::kFew);
  for (int n = 0; n < 4; ++n) {
    const at::Tensor tensor = torch::randn({5 * kFloats + 3});
    faults_.arm(n);
    const auto parked = store->park(tensor);
    store->flush();
    EXPECT_TRUE(same_bits(parked->load(), tensor));
  }
  EXPECT_EQ(faults_.struck(), 4);
}

TEST_F(DiskStoreTest, LeavesNoFileInTheFolder) {
  std::string folder = (fs::path(scratch()) / "reprise-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  options_.folder = folder;
  {
    const auto store = disk_store(options_);
    const auto parked = store->park(value(1));
    store->flush();
    EXPECT_TRUE(fs::is_empty(folder)) << "nothing to be left after a crash";
    EXPECT_TRUE(same_bits(parked->load(), value(1)));
  }
  fs::remove(folder);
}

TEST_F(DiskStoreTest, UsesTheSamePlacesInTheFileAgain) {
  options_.byte_cap = KiB(80);
  const auto store = make();
  for (int step = 0; step < 10; ++step) {
    std::vector<std::unique_ptr<ParkedTensor>> parked;
    for (int i = 0; i < 9; ++i) parked.push_back(store->park(value(i)));
    for (int i = 8; i >= 0; --i) {
      EXPECT_TRUE(same_bits(parked.back()->load(), value(i)));
      parked.pop_back();
    }
  }
}

TEST_F(DiskStoreTest, RefusesTensorsOfAnotherDeviceAndSaysWhatTakesThem) {
  // No test machine need have an accelerator: a tensor that says so and has a pointer will do.
  c10::Storage storage(c10::Storage::use_byte_size_t(), 4,
                       c10::DataPtr(&options_, c10::Device("cuda:0")), nullptr, false);
  auto on_device = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>());
  on_device.unsafeGetTensorImpl()->set_sizes_contiguous({1});
  const auto store = make();
  const std::string text = error_of<UsageError>([&] { store->park(on_device); });
  EXPECT_TRUE(contains(text, "disk store in " + scratch() + " does not take tensors on cuda:0"));
  EXPECT_TRUE(contains(text, "host_store() is for those on an accelerator"));
}

TEST(DiskStoreOptions, OutOfRangeAreRefusedWithTheirNameAndBound) {
  const auto text_of = [](auto&& change) {
    DiskStoreOptions options = small_disk();
    change(options);
    return error_of<UsageError>([&] { disk_store(options); });
  };
  EXPECT_TRUE(
      contains(text_of([](auto& o) { o.folder = ""; }), "DiskStoreOptions.folder is empty"));
  EXPECT_TRUE(contains(text_of([](auto& o) { o.workers = 0; }),
                       "DiskStoreOptions.workers is 0; it must be from 1 to 64"));
  EXPECT_TRUE(contains(text_of([](auto& o) { o.block = Bytes(1000); }),
                       "DiskStoreOptions.block is 1000 bytes; it must be a multiple of 4096"));
  EXPECT_TRUE(contains(text_of([](auto& o) { o.in_flight = Bytes(-1); }), "in_flight is -1 B"));
  EXPECT_TRUE(contains(text_of([](auto& o) { o.read_ahead = Bytes(-1); }), "read_ahead is -1 B"));
  EXPECT_TRUE(contains(text_of([](auto& o) { o.byte_cap = Bytes(0); }), "byte_cap is 0 B"));
}

TEST(DiskStoreOptions, AFolderThatCannotBeUsedIsAnErrorThatNamesIt) {
  DiskStoreOptions options = small_disk();
  options.folder = "/nowhere/at/all";
  const std::string text = error_of<StoreError>([&] { disk_store(options); });
  EXPECT_TRUE(contains(text, "cannot make a file in '/nowhere/at/all': No such file or directory"));
  EXPECT_TRUE(contains(text, "give a folder that exists"));
}

}  // namespace
}  // namespace reprise
