// The stores that the contract is run over: a new one is one line here.
#include <reprise/store.h>

#include "examples/extending/bf16_store.h"
#include "store/host_store.h"
#include "tests/store/fake_engine.h"
#include "tests/store/testing.h"

namespace reprise::testing {
namespace {

std::shared_ptr<Store> faulty_disk(Faults& faults, const DiskStoreOptions& options) {
  return store::make_disk_store(
      options, std::make_unique<FaultyFile>(store::open_block_file(options.folder), faults));
}

std::shared_ptr<Store> disk_with_one_worker(Faults& faults) {
  DiskStoreOptions options = small_disk();
  options.workers = 1;
  options.in_flight = Bytes(0);
  options.read_ahead = Bytes(0);
  return faulty_disk(faults, options);
}

std::shared_ptr<Store> host(Faults& faults, bool at_random) {
  auto device = std::make_shared<FakeEngine::Device>(faults);
  device->at_random = at_random;
  HostStoreOptions options;
  options.in_flight = KiB(64);
  options.read_ahead = KiB(64);
  return store::make_host_store(options, std::make_unique<FakeEngine>(device));
}

std::shared_ptr<Store> compressed(Compression compression) {
  return compressed_store({.compression = compression});
}

}  // namespace

std::vector<StoreCase> store_cases() {
  return {
      {"Memory", [](Faults&) { return memory_store(); }},
      {"Bf16", [](Faults&) { return std::make_shared<example::Bf16Store>(); }, /*exact=*/false},
      {"CompressedExact", [](Faults&) { return compressed_store(); }},
      {"CompressedBf16", [](Faults&) { return compressed(Compression::kBfloat16); },
       /*exact=*/false},
      {"CompressedInt8", [](Faults&) { return compressed(Compression::kInt8); }, /*exact=*/false,
       /*of_range=*/1.0 / 255},
      {"CompressedInt4", [](Faults&) { return compressed(Compression::kInt4); }, /*exact=*/false,
       /*of_range=*/1.0 / 15},
      {"Disk", [](Faults& faults) { return faulty_disk(faults, small_disk()); }},
      {"DiskWithoutRoomInMemory", disk_with_one_worker},
      {"Host", [](Faults& faults) { return host(faults, /*at_random=*/false); }},
      {"HostAtRandom", [](Faults& faults) { return host(faults, /*at_random=*/true); }},
  };
}

std::vector<StoreCase> exact_store_cases() {
  std::vector<StoreCase> cases = store_cases();
  std::erase_if(cases, [](const StoreCase& store) { return !store.exact; });
  return cases;
}

}  // namespace reprise::testing
