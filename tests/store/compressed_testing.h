// What the tests of compressed stores share: values through a store, and the form that they take.
#pragma once

#include <reprise/store.h>

#include "tests/store/testing.h"

namespace reprise::testing {

inline at::Tensor through(CompressedStore& store, const at::Tensor& tensor) {
  return store.park(tensor)->load();
}
inline at::Tensor through(Compression compression, const at::Tensor& tensor,
                          std::uint64_t seed = 0) {
  return through(*compressed_store({.compression = compression, .seed = seed}), tensor);
}

// The form that a value takes, and what it takes then.
struct Taken {
  CompressedForm form;
  std::int64_t bytes;
  bool operator==(const Taken&) const = default;
};
inline void PrintTo(const Taken& taken, std::ostream* out) {
  *out << "form " << static_cast<int>(taken.form) << ", " << taken.bytes << " bytes";
}
inline Taken taken_by(Compression compression, const at::Tensor& tensor, std::int64_t block = 256) {
  const auto store = compressed_store({.compression = compression, .block = block});
  const auto parked = store->park(tensor);
  for (int i = 0; i < 6; ++i) {
    const auto form = static_cast<CompressedForm>(i);
    const CompressedTotals totals = store->totals(form);
    if (totals.count == 0) continue;
    EXPECT_EQ(totals.before, parked->bytes());
    EXPECT_EQ(totals.after, store->compressed());
    return {form, store->compressed().count};
  }
  return {CompressedForm::kUncompressed, -1};
}

inline at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed = 1) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

}  // namespace reprise::testing
