// How fast values are compressed and brought back, on one thread, beside a copy of them, and in how
// many times fewer bytes they are meanwhile.
#include <ATen/ATen.h>
#include <reprise/store.h>

#include <string>
#include <vector>

#include "benches.h"
#include "benchmarks/support/race.h"

namespace reprise::bench {
namespace {

constexpr const char* kCompressedStore = "compressed_store";

struct Compressed {
  std::string name;
  at::Tensor tensor;
  Compression compression;
  Bar bar = {};  // of the bytes
};

std::vector<Compressed> compressed_cases() {
  // More than caches hold.
  const at::Tensor x = at::randn({8 << 20});
  return {{"mask, f32", x.gt(0).to(at::kFloat), Compression::kExact},
          {"sparse, f32, half zero", x.relu(), Compression::kExact},
          {"bf16, f32", x, Compression::kBfloat16},
          {"8 bits, f32", x, Compression::kInt8, {.at_least = 3.8}},
          {"8 bits, bf16", x.to(at::kBFloat16), Compression::kInt8},
          {"8 bits, f16", x.to(at::kHalf), Compression::kInt8},
          {"8 bits, f64", x.to(at::kDouble), Compression::kInt8},
          {"4 bits, f32", x, Compression::kInt4, {.at_least = 7}}};
}

}  // namespace

void compressed_store(Session& session) {
  Race race(session, kCompressedStore, nullptr);
  const std::vector<Compressed> cases = compressed_cases();
  std::vector<std::unique_ptr<ParkedTensor>> parked;
  for (const Compressed& each : cases) {
    const auto store = reprise::compressed_store({.compression = each.compression});
    parked.push_back(store->park(each.tensor));
    const auto ratio = [](Bytes before, Bytes after) {
      return static_cast<double>(before.count) / static_cast<double>(after.count);
    };
    session.report(make_figure(kCompressedStore, each.name + ": bytes", "× fewer",
                               std::vector{ratio(parked.back()->bytes(), store->compressed())}, {},
                               each.bar));
    race.add(each.name + ": park", [store, &each] { store->park(each.tensor); });
    race.add(each.name + ": load", [&value = *parked.back()] { value.load(); });
    const Step copy = [&each] { each.tensor.clone(); };
    race.add_peer(each.name + ": park", copy);
    race.add_peer(each.name + ": load", copy);
  }
  race.run(Seconds(20));
  for (const Compressed& each : cases) {
    for (const char* what : {": park", ": load"}) {
      race.report(each.name + what, "GB/s", [&](const Round& round) {
        return 1e-9 * static_cast<double>(each.tensor.nbytes()) / round[each.name + what];
      });
    }
  }
}

}  // namespace reprise::bench
