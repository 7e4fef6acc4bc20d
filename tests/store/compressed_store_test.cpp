// A compressed store: which form a value takes, what it takes in it, and that the same parks make
// the same bits.
#include <ATen/Parallel.h>
#include <rapidcheck.h>

#include "libtorch/memory/memory_limit.h"
#include "tests/refusal.h"
#include "tests/store/compressed_testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

// As counted: allocations are a little larger than what was asked for, up to a page.
::testing::AssertionResult about(Bytes actual, Bytes expected) {
  constexpr Bytes kRounding = KiB(4) + Bytes(64);
  if (actual >= expected && actual <= expected + kRounding) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << actual.count << " bytes, not " << expected.count;
}

TEST(CompressedStore, IsExactUnlessAskedForMore) {
  const at::Tensor tensor = normal({1000});
  const auto store = compressed_store();
  EXPECT_TRUE(store->exact());
  const auto parked = store->park(tensor);
  EXPECT_TRUE(parked->load().is_alias_of(tensor)) << "nothing is saved, and nothing copied";
  EXPECT_EQ(store->compressed(), Bytes(4000));
  EXPECT_EQ(taken_by(Compression::kExact, tensor), (Taken{CompressedForm::kUncompressed, 4000}));
  EXPECT_EQ(store->name(), "compressed store (exact)");
}

TEST(CompressedStore, WhatHasTwoKindsTakesABitAnElement) {
  const at::Tensor mask = normal({100'000}) > 0;
  const std::int64_t bytes = 100'000 / 8 + 2 * 16;
  for (const at::ScalarType dtype : {at::kBool, at::kFloat, at::kHalf, at::kDouble, at::kLong}) {
    for (const Compression compression : {Compression::kExact, Compression::kInt4}) {
      const at::Tensor tensor = mask.to(dtype).mul(3);
      EXPECT_EQ(taken_by(compression, tensor), (Taken{CompressedForm::kMask, bytes})) << dtype;
      EXPECT_TRUE(same_tensor(through(compression, tensor), tensor)) << dtype;
    }
  }
  // Patterns, not numbers.
  const at::Tensor signs = at::where(mask, -0.0f, NAN);
  EXPECT_EQ(taken_by(Compression::kExact, signs), (Taken{CompressedForm::kMask, bytes}));
  EXPECT_TRUE(same_tensor(through(Compression::kExact, signs), signs));
}

TEST(CompressedStore, AThirdKindAnywhereIsSeen) {
  for (const std::int64_t place : {0, 7, 65'535, 65'536, 99'999}) {
    at::Tensor tensor = (normal({100'000}) > 0).to(at::kInt) + 1;
    tensor[place] = 7;
    EXPECT_EQ(taken_by(Compression::kExact, tensor),
              (Taken{CompressedForm::kUncompressed, 400'000}));
    EXPECT_TRUE(same_tensor(through(Compression::kExact, tensor), tensor)) << place;
  }
}

TEST(CompressedStore, WhatIsMostlyZeroTakesTheRestAndABitAnElement) {
  const at::Tensor x = normal({100'000});
  const at::Tensor tensor = x.relu();
  const std::int64_t kept = tensor.count_nonzero().item<std::int64_t>();
  const std::int64_t overhead = 100'000 / 8 + 4 + 2 * 8;  // rounded up to 8 bytes
  EXPECT_EQ(taken_by(Compression::kExact, tensor),
            (Taken{CompressedForm::kSparse, overhead + 4 * (kept + 1)}));
  EXPECT_TRUE(same_tensor(through(Compression::kExact, tensor), tensor));
  // -0 is an element, and a quarter less is what it must save.
  EXPECT_EQ(taken_by(Compression::kExact, at::where(x > 0, x, -0.0f)).form,
            CompressedForm::kUncompressed);
  EXPECT_EQ(taken_by(Compression::kExact, at::where(x > -1, x, 0.0f)).form,
            CompressedForm::kUncompressed);
  // 8 bits are fewer here, and not there.
  EXPECT_EQ(taken_by(Compression::kInt8, tensor).form, CompressedForm::kInt8);
  EXPECT_EQ(taken_by(Compression::kInt8, (x - 1.5).relu()).form, CompressedForm::kSparse);
}

TEST(CompressedStore, ExactFormsChangeNoBitOfAnything) {
  const auto store = compressed_store();
  EXPECT_TRUE(rc::check("a tensor comes back with the bits that it had", [&] {
    const auto count = *rc::gen::element<std::int64_t>(1, 7, 8, 9, 511, 513, 4096, 65'535, 65'537);
    const auto kinds = *rc::gen::inRange<std::int64_t>(1, 4);
    const double zeros = *rc::gen::element(0.0, 0.2, 0.5, 0.9, 0.999);
    const auto dtype = *rc::gen::element(at::kByte, at::kShort, at::kHalf, at::kInt, at::kFloat,
                                         at::kDouble, at::kLong, at::kComplexFloat);
    torch::manual_seed(*rc::gen::arbitrary<std::uint32_t>());
    at::Tensor tensor = *rc::gen::arbitrary<bool>() ? at::randint(0, kinds, {count})
                                                    : at::randint(-100, 100, {count});
    tensor = (tensor * (at::rand({count}) >= zeros)).to(dtype);
    if (*rc::gen::arbitrary<bool>()) tensor = tensor.slice(0, 0, count, 2);
    const auto same = same_tensor(through(*store, tensor), tensor);
    if (!same) RC_FAIL(same.message());
  }));
  for (int form = 0; form < 3; ++form) {
    EXPECT_GT(store->totals(static_cast<CompressedForm>(form)).count, 0) << form;
  }
  EXPECT_EQ(store->compressed(), Bytes(0));
}

TEST(CompressedStore, TakesAsManyBytesAsItSays) {
  const at::Tensor tensor = normal({1024, 1024});
  const auto ratio = [&](Compression compression) {
    const auto store = compressed_store({.compression = compression});
    at::Tensor copy = tensor.clone();
    const Bytes before = live_bytes();
    const auto parked = store->park(copy);
    EXPECT_TRUE(about(live_bytes() - before, store->compressed())) << "and nothing besides";
    copy.reset();
    return static_cast<double>(parked->bytes().count) /
           static_cast<double>(store->compressed().count);
  };
  EXPECT_EQ(ratio(Compression::kBfloat16), 2);
  EXPECT_GE(ratio(Compression::kInt8), 3.8);
  EXPECT_GE(ratio(Compression::kInt4), 7);
  EXPECT_EQ(taken_by(Compression::kInt8, normal({256 * 10 + 1})),
            (Taken{CompressedForm::kInt8, 256 * 10 + 16 + 11 * 8}));
  EXPECT_EQ(taken_by(Compression::kInt4, normal({256 * 10 + 33}).to(at::kDouble), 32),
            (Taken{CompressedForm::kInt4, 128 * 10 + 32 + 82 * 16}));
}

TEST(CompressedStore, ParkingAndLoadingTakeNoOtherMemory) {
  const at::Tensor tensor = normal({1 << 20});
  const Bytes size(static_cast<std::int64_t>(tensor.nbytes()));
  for (const Compression compression :
       {Compression::kExact, Compression::kBfloat16, Compression::kInt8, Compression::kInt4}) {
    const auto store = compressed_store({.compression = compression});
    const at::Tensor value = compression == Compression::kExact ? tensor.relu() : tensor;
    const PeakScope parking;
    const auto parked = store->park(value);
    EXPECT_TRUE(about(parking.peak_above_start(), store->compressed()));
    const PeakScope loading;
    const at::Tensor back = parked->load();
    EXPECT_TRUE(about(loading.peak_above_start(), size));
  }
}

TEST(CompressedStore, TheSameParksMakeTheSameBits) {
  const at::Tensor tensor = normal({300'001});
  const auto run = [&](std::uint64_t seed, int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const auto store = compressed_store({.compression = Compression::kInt4, .seed = seed});
    Tensors all = {through(*store, tensor), through(*store, tensor)};
    at::set_num_threads(before);
    EXPECT_FALSE(at::equal(all[0], all[1])) << "each has noise of its own";
    EXPECT_EQ(store->next_stream(), 2u);
    return all;
  };
  EXPECT_TRUE(same_bits(run(1, 1), run(1, 1)));
  EXPECT_TRUE(same_bits(run(1, 1), run(1, 3)));
  EXPECT_FALSE(at::equal(run(1, 1)[0], run(2, 1)[0]));
  const auto resumed = compressed_store({.compression = Compression::kInt4, .seed = 1});
  resumed->set_next_stream(1);
  EXPECT_TRUE(same_bits(through(*resumed, tensor), run(1, 1)[1]));
}

TEST(CompressedStore, LeavesLibTorchsGeneratorsAlone) {
  torch::manual_seed(3);
  const at::Tensor expected = at::rand({5});
  torch::manual_seed(3);
  through(Compression::kInt4, normal({1000}));
  EXPECT_TRUE(at::equal(at::rand({5}), expected));
}

TEST(CompressedStore, ParksOneTensorWithACompressionOfItsOwn) {
  const auto store = compressed_store({.compression = Compression::kInt4});
  const at::Tensor tensor = normal({1000, 4}).t();
  const auto exact = store->park_as(tensor, Compression::kExact);
  const auto eight = store->park_as(tensor, Compression::kInt8);
  const auto four = store->park(tensor);
  EXPECT_TRUE(same_tensor(exact->load(), tensor));
  const auto error = [&](const std::unique_ptr<ParkedTensor>& parked) {
    return (parked->load() - tensor).abs().max().item<float>();
  };
  EXPECT_GT(error(eight), 0);
  EXPECT_GT(error(four), 5 * error(eight));
  EXPECT_EQ(store->statistics().count, 3);
  EXPECT_EQ(store->statistics().parked, Bytes(48'000));
  EXPECT_EQ(store->totals(CompressedForm::kInt8).count, 1);
  EXPECT_EQ(store->totals(CompressedForm::kInt4).count, 1);
}

TEST(CompressedStore, RefusesToParkWithLessThanItPromises) {
  const auto store = compressed_store({.compression = Compression::kBfloat16});
  EXPECT_EQ(refusal_of([&] { store->park_as(at::ones({4}), Compression::kInt8); }),
            "compressed store (bf16): a tensor cannot be parked as 8 bits, which changes more than "
            "the store says it does; make the store with the compression that changes most of "
            "those that are needed");
  EXPECT_EQ(refusal_of([&] { store->park_as(at::ones({4}), static_cast<Compression>(9)); }),
            "CompressedStore::park_as(): the compression is 9; it must be one of kExact, "
            "kBfloat16, kInt8 and kInt4");
  EXPECT_EQ(store->statistics().count, 0);
}

TEST(CompressedStore, RefusesOptionsThatAreOutOfRange) {
  for (const std::int64_t block : {-32, 0, 31, 33, 65'536 + 32}) {
    EXPECT_EQ(refusal_of([&] { compressed_store({.block = block}); }),
              "CompressedStoreOptions.block is " + std::to_string(block) +
                  " elements; it must be a multiple of 32 from 32 to 65536; 256 is the default");
  }
  compressed_store({.block = 32});
  compressed_store({.block = 65'536});
  EXPECT_EQ(refusal_of([] { compressed_store({.compression = static_cast<Compression>(4)}); }),
            "CompressedStoreOptions.compression is 4; it must be one of kExact, kBfloat16, kInt8 "
            "and kInt4");
}

// Refuses each allocation of more than some bytes.
class NoRoom final : public libtorch::LimitKeeper {
 public:
  NoRoom() : LimitKeeper(0) {}
  Room make_room(std::int64_t wanted) override {
    if (wanted > 1000) throw BudgetError("no room");
    return Room::kExceeded;
  }
};

TEST(CompressedStore, WithoutMemoryNothingIsLeftBehind) {
  const at::Tensor tensor = normal({100'000});
  for (const Compression compression :
       {Compression::kExact, Compression::kBfloat16, Compression::kInt8, Compression::kInt4}) {
    const auto store = compressed_store({.compression = compression});
    const at::Tensor value = tensor.relu();
    const Bytes before = live_bytes();
    const auto parked = store->park(value);
    {
      NoRoom keeper;
      const libtorch::LimitScope scope(keeper);
      EXPECT_EQ(refusal_of<BudgetError>([&] { store->park(value); }), "no room");
      EXPECT_EQ(refusal_of<BudgetError>([&] { parked->load(); }), "no room");
      EXPECT_EQ(store->statistics().count, 1);
      EXPECT_TRUE(about(live_bytes() - before, store->compressed()));
    }
    EXPECT_EQ(parked->load().sizes(), value.sizes());
    EXPECT_TRUE(at::allclose(through(*store, value), value, 0.01, 0.6));
  }
}

}  // namespace
}  // namespace reprise
