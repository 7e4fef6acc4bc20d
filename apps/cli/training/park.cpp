// The forms are those of the strategy offload (models/strategy.h).
#include "apps/cli/training/park.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <string_view>
#include <utility>

namespace reprise::app {

namespace {

constexpr std::string_view kDisk = "disk=";
constexpr const char* kParkRemedy = "give disk=DIR, a folder on the disk to use, or leave it out";
constexpr const char* kParkRemedyOnDevice =
    "give host, disk=DIR (a folder on the disk to use), or leave it out";

}  // namespace

void check_park(const std::string& park, c10::Device device) {
  if (!device.is_cpu() && park == "host") return;
  if (device.is_cpu() && (park == "host" || park == "memory")) {
    throw UsageError(fmt::format(
        "--park is '{}': on the CPU that is memory that the budget counts, so that parking there "
        "would free nothing; {}",
        park, kParkRemedy));
  }
  if (!park.starts_with(kDisk) || park.size() == kDisk.size()) {
    throw UsageError(fmt::format("--park is '{}': {}", park,
                                 device.is_cpu() ? kParkRemedy : kParkRemedyOnDevice));
  }
}

std::shared_ptr<Store> open_park(const std::optional<std::string>& park, c10::Device device) {
  if (!park) return nullptr;
  check_park(*park, device);
  if (*park == "host") return host_store();
  try {
    return disk_store({.folder = park->substr(kDisk.size())});
  } catch (const Error& error) {
    throw UsageError(fmt::format("--park is '{}': {}; {}", *park, error.what(), kParkRemedy));
  }
}

BudgetOptions budget_options(const RunOptions& options, std::shared_ptr<Store> store,
                             c10::Device device) {
  return {.device = device,
          .store = std::move(store),
          .heuristic = parse_heuristic(options.heuristic),
          .verify = options.determinism == "values"};
}

}  // namespace reprise::app
