// What the tests of stores share: the stores that the contract is run over, and tensors of every
// kind to park.
#pragma once

#include <reprise/store.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/disk_store.h"
#include "tests/region/testing.h"
#include "tests/store/faulty_file.h"

namespace reprise::testing {

// A folder that can be written to.
inline std::string scratch() { return ::testing::TempDir(); }

// Small blocks and little room, so that small tensors exercise it all.
inline DiskStoreOptions small_disk() {
  DiskStoreOptions options;
  options.folder = scratch();
  options.block = KiB(8);
  options.in_flight = KiB(64);
  options.read_ahead = KiB(64);
  return options;
}

// One store to run the contract over.
struct StoreCase {
  std::string name;
  // `faults`: what makes its operations fail; a store that cannot fail ignores it.
  std::function<std::shared_ptr<Store>(Faults& faults)> make;
  bool exact = true;
  // What an inexact store may be off, as a part of the range of the values; zero: small whole
  // numbers come back as they were.
  double of_range = 0;
};

std::vector<StoreCase> store_cases();
std::vector<StoreCase> exact_store_cases();
inline void PrintTo(const StoreCase& store, std::ostream* out) { *out << store.name; }

// Equal bits, sizes and strides, on the same kind of memory, and without history.
inline ::testing::AssertionResult same_tensor(const at::Tensor& actual,
                                              const at::Tensor& expected) {
  if (actual.strides() != expected.strides() || actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure()
           << actual.sizes() << " by " << actual.strides() << " against " << expected.sizes()
           << " by " << expected.strides();
  }
  if (actual.device() != expected.device() || actual.is_conj() != expected.is_conj() ||
      actual.is_neg() != expected.is_neg()) {
    return ::testing::AssertionFailure() << "device, or the conjugate or negative bit, differ";
  }
  if (actual.requires_grad()) return ::testing::AssertionFailure() << "it requires grad";
  return same_bits(actual.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg());
}

}  // namespace reprise::testing
