// Powercap's zones are folders intel-rapl:N, also on AMD's processors. Parts of a package
// (intel-rapl:N:M) are in it already; so is what the zone "psys" and intel-rapl-mmio:N count.
#include "apps/cli/experiment/energy.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <system_error>

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr double kMicro = 1e-6;

// What the file's first line says. Throws Error if it cannot be read.
std::string counter_line(const fs::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             &std::fclose);
  char text[64] = "";
  if (!file || std::fgets(text, sizeof text, file.get()) == nullptr) {
    const std::string why = errno != 0 ? std::generic_category().message(errno) : "it is empty";
    throw Error(fmt::format("cannot read {}: {}", path.string(), why));
  }
  const std::string line = text;
  return line.substr(0, line.find('\n'));
}

std::uint64_t microjoules_in(const fs::path& path) {
  errno = 0;
  const std::string line = counter_line(path);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || end != line.data() + line.size()) {
    throw Error(
        fmt::format("{} says '{}', and should be a count of microjoules", path.string(), line));
  }
  return value;
}

class PackageCounter : public EnergyCounter {
 public:
  explicit PackageCounter(const fs::path& zone)
      : energy_(zone / "energy_uj"),
        greatest_(microjoules_in(zone / "max_energy_range_uj")),
        last_(microjoules_in(energy_)) {}

  double advance() override {
    const std::uint64_t now = microjoules_in(energy_);
    // A counter that is lower than before has passed its greatest value and begun at zero.
    const std::uint64_t more =
        now >= last_ ? now - last_ : greatest_ - std::min(last_, greatest_) + now;
    last_ = now;
    return kMicro * static_cast<double>(more);
  }

 private:
  fs::path energy_;
  std::uint64_t greatest_;
  std::uint64_t last_;
};

// intel-rapl:0, but not intel-rapl:0:1.
bool is_top_zone(const std::string& name) {
  constexpr std::string_view kPrefix = "intel-rapl:";
  return name.starts_with(kPrefix) && name.find(':', kPrefix.size()) == name.npos;
}

}  // namespace

std::vector<std::unique_ptr<EnergyCounter>> package_counters(const fs::path& powercap) {
  std::error_code error;
  std::vector<fs::path> zones;
  for (const auto& entry : fs::directory_iterator(powercap, error)) {
    if (is_top_zone(entry.path().filename().string())) zones.push_back(entry.path());
  }
  if (error) throw Error(fmt::format("cannot read {}: {}", powercap.string(), error.message()));
  std::ranges::sort(zones);
  std::vector<std::unique_ptr<EnergyCounter>> counters;
  for (const fs::path& zone : zones) {
    errno = 0;
    if (!counter_line(zone / "name").starts_with("package")) continue;
    counters.push_back(std::make_unique<PackageCounter>(zone));
  }
  if (counters.empty()) {
    throw Error(fmt::format("{} has no counter of a CPU package", powercap.string()));
  }
  return counters;
}

EnergyMeter::EnergyMeter(const EnergySources& sources) {
  try {
    if (sources.cuda_device) {
      counters_.push_back(nvml_counter(sources.nvml, *sources.cuda_device));
      sources_ = fmt::format("CUDA device {} (NVML)", *sources.cuda_device);
    } else {
      counters_ = package_counters(sources.powercap);
      const char* plural = counters_.size() == 1 ? "" : "s";
      sources_ = fmt::format("{} CPU package{} (RAPL)", counters_.size(), plural);
    }
  } catch (const Error& reason) {
    failure_ = reason.what();
  }
}

void EnergyMeter::start() {
  if (counters_.empty()) return;
  failure_.clear();
  sample();
  joules_ = 0;
}

void EnergyMeter::sample() {
  try {
    for (const auto& counter : counters_) joules_ += counter->advance();
  } catch (const Error& reason) {
    failure_ = reason.what();
  }
}

std::optional<double> EnergyMeter::joules() {
  sample();
  if (!failure_.empty()) return std::nullopt;
  return joules_;
}

}  // namespace reprise::app
