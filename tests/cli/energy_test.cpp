// The energy meter on made-up counters: sums, counters that begin again, and why there is nothing.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "apps/cli/experiment/energy.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void write_zone(const TemporaryFolder& folder, const std::string& zone, const std::string& name,
                const std::string& microjoules, const std::string& greatest = "1000000") {
  fs::create_directories(folder.path() / zone);
  write_file(folder / zone + "/name", name + "\n");
  write_file(folder / zone + "/energy_uj", microjoules + "\n");
  write_file(folder / zone + "/max_energy_range_uj", greatest + "\n");
}

EnergySources sources_in(const TemporaryFolder& folder) {
  EnergySources sources;
  sources.powercap = folder.path();
  return sources;
}

TEST(EnergyMeter, AddsUpThePackagesSinceItsStart) {
  const TemporaryFolder folder;
  write_zone(folder, "intel-rapl:0", "package-0", "100");
  write_zone(folder, "intel-rapl:1", "package-1", "2000");
  EnergyMeter meter(sources_in(folder));
  EXPECT_EQ(meter.description(), "2 CPU packages (RAPL)");
  EXPECT_DOUBLE_EQ(*meter.joules(), 0);
  write_zone(folder, "intel-rapl:0", "package-0", "150100");
  write_zone(folder, "intel-rapl:1", "package-1", "52000");
  EXPECT_DOUBLE_EQ(*meter.joules(), 0.2);
  EXPECT_DOUBLE_EQ(*meter.joules(), 0.2);
  meter.start();
  EXPECT_DOUBLE_EQ(*meter.joules(), 0);
  write_zone(folder, "intel-rapl:0", "package-0", "150101");
  EXPECT_NEAR(*meter.joules(), 1e-6, 1e-15);
}

TEST(EnergyMeter, FollowsCountersThatBeginAgain) {
  const TemporaryFolder folder;
  write_zone(folder, "intel-rapl:0", "package-0", "900000");
  EnergyMeter meter(sources_in(folder));
  EXPECT_EQ(meter.description(), "1 CPU package (RAPL)");
  for (int round = 1; round <= 3; ++round) {
    write_zone(folder, "intel-rapl:0", "package-0", "500000");
    meter.sample();
    write_zone(folder, "intel-rapl:0", "package-0", "900000");
    EXPECT_NEAR(*meter.joules(), round, 1e-12);
  }
}

TEST(EnergyMeter, CountsNothingTwice) {
  const TemporaryFolder folder;
  const auto write_all = [&](const std::string& microjoules) {
    write_zone(folder, "intel-rapl:0", "package-0", microjoules);
    write_zone(folder, "intel-rapl:0:0", "core", microjoules);
    write_zone(folder, "intel-rapl:1", "psys", microjoules);
    write_zone(folder, "intel-rapl-mmio:0", "package-0", microjoules);
  };
  write_all("0");
  EnergyMeter meter(sources_in(folder));
  write_all("250000");
  EXPECT_DOUBLE_EQ(*meter.joules(), 0.25);
}

TEST(EnergyMeter, SaysWhyThereIsNothing) {
  const TemporaryFolder folder;
  const auto description = [&] {
    EnergyMeter meter(sources_in(folder));
    EXPECT_FALSE(meter.joules());
    return meter.description();
  };
  EXPECT_EQ(description(), folder.path().string() + " has no counter of a CPU package");
  write_zone(folder, "intel-rapl:0", "package-0", "1");
  write_zone(folder, "intel-rapl:1", "package-1", "much");
  const std::string second = folder / "intel-rapl:1/energy_uj";
  EXPECT_EQ(description(), second + " says 'much', and should be a count of microjoules");
  // One that cannot be read: a part must not pass for the whole.
  fs::remove(second);
  EXPECT_EQ(description(), "cannot read " + second + ": No such file or directory");
  fs::create_directory(second);
  EXPECT_EQ(description(), "cannot read " + second + ": Is a directory");
  fs::remove_all(folder / "intel-rapl:1");
  write_file(folder / "intel-rapl:0/max_energy_range_uj", "");
  EXPECT_THAT(description(), HasSubstr("max_energy_range_uj: it is empty"));
  EnergySources nowhere;
  nowhere.powercap = folder.path() / "nowhere";
  EXPECT_EQ(EnergyMeter(nowhere).description(),
            "cannot read " + nowhere.powercap.string() + ": No such file or directory");
}

TEST(EnergyMeter, HasNothingOnceACounterFailedUntilItIsStartedAgain) {
  const TemporaryFolder folder;
  write_zone(folder, "intel-rapl:0", "package-0", "1");
  EnergyMeter meter(sources_in(folder));
  const std::string file = folder / "intel-rapl:0/energy_uj";
  fs::rename(file, file + ".away");
  meter.sample();
  fs::rename(file + ".away", file);
  EXPECT_FALSE(meter.joules());
  EXPECT_THAT(meter.description(), HasSubstr("cannot read"));
  meter.start();
  EXPECT_TRUE(meter.joules());
  EXPECT_EQ(meter.description(), "1 CPU package (RAPL)");
}

// A library with NVML's functions, and the way to set what it says.
class FakeNvml {
 public:
  FakeNvml() : handle_(dlopen(path(), RTLD_NOW)) {
    EXPECT_NE(handle_, nullptr) << dlerror();
    set_ = reinterpret_cast<Set>(dlsym(handle_, "fake_nvml_set"));
    starts_ = reinterpret_cast<int (*)()>(dlsym(handle_, "fake_nvml_starts"));
    set(1, 0, 0);
    forget_environment();
  }
  ~FakeNvml() { forget_environment(); }
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;

  static const char* path() { return REPRISE_LIBRARY_DIR "/libfake_nvml.so"; }
  void set(unsigned count, unsigned device, unsigned long long millijoules, int status = 0) const {
    set_(count, device, millijoules, status);
  }
  int starts() const { return starts_(); }

 private:
  static void forget_environment() {
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_DEVICE_ORDER");
  }

  using Set = void (*)(unsigned, unsigned, unsigned long long, int);
  void* handle_;
  Set set_ = nullptr;
  int (*starts_)() = nullptr;
};

EnergyMeter device_meter(int device) {
  EnergySources sources;
  sources.cuda_device = device;
  sources.nvml = FakeNvml::path();
  return EnergyMeter(sources);
}

TEST(EnergyMeter, ReadsADevicesCounter) {
  const FakeNvml nvml;
  nvml.set(1, 0, 5000);
  {
    EnergyMeter meter = device_meter(0);
    EXPECT_EQ(meter.description(), "CUDA device 0 (NVML)");
    nvml.set(1, 0, 7500);
    EXPECT_DOUBLE_EQ(*meter.joules(), 2.5);
    EXPECT_EQ(nvml.starts(), 1);
    nvml.set(1, 0, 100);
    EXPECT_FALSE(meter.joules());
    EXPECT_THAT(meter.description(), HasSubstr("went back"));
  }
  EXPECT_EQ(nvml.starts(), 0);
}

TEST(EnergyMeter, TakesTheDeviceThatCudaMeans) {
  const FakeNvml nvml;
  const auto joules_of_second = [&](int cuda_device) {
    nvml.set(3, 1, 0);
    EnergyMeter meter = device_meter(cuda_device);
    nvml.set(3, 1, 1000);
    return meter.joules().value_or(-1);
  };
  EXPECT_EQ(joules_of_second(1), -1);
  EXPECT_THAT(device_meter(1).description(),
              HasSubstr("which of NVML's 3 devices CUDA device 1 is cannot be told; set "
                        "CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  setenv("CUDA_VISIBLE_DEVICES", "GPU-c,GPU-b", 1);
  EXPECT_EQ(joules_of_second(1), 1);
  EXPECT_EQ(joules_of_second(0), 0);
  // Numbers are CUDA's own as long as its order is.
  setenv("CUDA_VISIBLE_DEVICES", "2,0,1", 1);
  EXPECT_EQ(joules_of_second(2), -1);
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  EXPECT_EQ(joules_of_second(2), 1);
  EXPECT_EQ(joules_of_second(3), -1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(joules_of_second(1), 1);
  EXPECT_THAT(device_meter(3).description(), HasSubstr("NVML cannot find device 3: Invalid"));
}

TEST(EnergyMeter, SaysWhyADeviceHasNothing) {
  const FakeNvml nvml;
  nvml.set(1, 0, 0, 3);
  EXPECT_EQ(device_meter(0).description(), "NVML cannot read a device's energy: Not Supported");
  EXPECT_EQ(nvml.starts(), 0);
  EnergySources sources;
  sources.cuda_device = 0;
  sources.nvml = "libno-such-library.so.1";
  EXPECT_THAT(EnergyMeter(sources).description(),
              HasSubstr("NVML cannot be opened: libno-such-library.so.1"));
}

}  // namespace
}  // namespace reprise::app
