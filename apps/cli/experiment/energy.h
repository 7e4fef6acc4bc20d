// The energy that a run takes, where the machine counts it: that of all CPU packages (RAPL, which
// Linux shows for Intel's and AMD's in /sys/class/powercap), or of a CUDA device (NVML).
//
// Counters are the whole machine's: what else runs on it is in them. The CPU's do not have memory
// in them, nor the device's the host. Many machines, above all virtual ones, show none, or to root
// only; then there are no joules, but the reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace reprise::app {

// Something that counts up from an unknown beginning.
class EnergyCounter {
 public:
  virtual ~EnergyCounter() = default;

  // Joules since the last call, or since it was made. Throws Error, with the reason, if it cannot
  // be read.
  virtual double advance() = 0;
};

struct EnergySources {
  // Its energy instead of the CPU's.
  std::optional<int> cuda_device = {};
  std::filesystem::path powercap = "/sys/class/powercap";
  std::string nvml = "libnvidia-ml.so.1";
};

// One thread at a time.
class EnergyMeter {
 public:
  // Looks for counters, and begins as start() does. Throws nothing for want of them.
  explicit EnergyMeter(const EnergySources& sources = {});

  // Counts from zero.
  void start();
  // Adds what came since the last call of any of these. A package's counter begins again after some
  // ten minutes to hours of full load, which shows only if it is read in between: call this once a
  // minute, or once a step.
  void sample();
  // Since start(), in joules, sampled now; nothing where it is not counted, or could not be read
  // since.
  std::optional<double> joules();

  // "2 CPU packages (RAPL)", or why joules() has nothing.
  const std::string& description() const { return failure_.empty() ? sources_ : failure_; }

 private:
  std::vector<std::unique_ptr<EnergyCounter>> counters_;
  std::string sources_;
  std::string failure_;
  double joules_ = 0;
};

// The counters of all packages, or the only one of the device. Throw Error, with the reason, if
// there are none, or one of them cannot be read, for a part would be taken for the whole.
std::vector<std::unique_ptr<EnergyCounter>> package_counters(const std::filesystem::path& powercap);
std::unique_ptr<EnergyCounter> nvml_counter(const std::string& library, int cuda_device);

}  // namespace reprise::app
