// NVML belongs to the driver, and is opened where there is one: no header or library of CUDA is
// needed to build. Its counter is that of nvmlDeviceGetTotalEnergyConsumption: millijoules since
// the driver was loaded, from Volta on.
#include <dlfcn.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "apps/cli/experiment/energy.h"

namespace reprise::app {

namespace {

constexpr double kMilli = 1e-3;

// As in nvml.h.
using NvmlDevice = struct NvmlDeviceStruct*;

class Nvml {
 public:
  explicit Nvml(const std::string& library) : handle_(dlopen(library.c_str(), RTLD_NOW)) {
    if (handle_ == nullptr) throw Error(fmt::format("NVML cannot be opened: {}", dlerror()));
    find(init_, "nvmlInit_v2");
    find(shutdown_, "nvmlShutdown");
    find(count_, "nvmlDeviceGetCount_v2");
    find(by_index_, "nvmlDeviceGetHandleByIndex_v2");
    find(by_uuid_, "nvmlDeviceGetHandleByUUID");
    find(energy_, "nvmlDeviceGetTotalEnergyConsumption");
    find(error_text_, "nvmlErrorString");
    check(init_(), "start");
  }
  // The library stays open: drivers do not like to be unloaded.
  ~Nvml() { shutdown_(); }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  unsigned devices() const {
    unsigned count = 0;
    check(count_(&count), "count its devices");
    return count;
  }
  NvmlDevice by_index(unsigned index) const {
    NvmlDevice device = nullptr;
    check(by_index_(index, &device), fmt::format("find device {}", index));
    return device;
  }
  NvmlDevice by_uuid(const std::string& uuid) const {
    NvmlDevice device = nullptr;
    check(by_uuid_(uuid.c_str(), &device), "find device " + uuid);
    return device;
  }
  unsigned long long millijoules(NvmlDevice device) const {
    unsigned long long energy = 0;
    check(energy_(device, &energy), "read a device's energy");
    return energy;
  }

 private:
  template <class F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle_, name));
    if (function == nullptr) throw Error(fmt::format("the driver's NVML has no {}", name));
  }
  void check(int status, const std::string& what) const {
    if (status != 0) throw Error(fmt::format("NVML cannot {}: {}", what, error_text_(status)));
  }

  void* handle_;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*by_index_)(unsigned, NvmlDevice*) = nullptr;
  int (*by_uuid_)(const char*, NvmlDevice*) = nullptr;
  int (*energy_)(NvmlDevice, unsigned long long*) = nullptr;
  const char* (*error_text_)(int) = nullptr;
};

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The entry of a list with commas; empty if there is none.
std::string_view entry_of(std::string_view list, int index) {
  for (; index > 0; --index) {
    const auto comma = list.find(',');
    if (comma == list.npos) return "";
    list.remove_prefix(comma + 1);
  }
  return list.substr(0, list.find(','));
}

// CUDA's numbers are not NVML's: CUDA hides and reorders devices by its environment, NVML does not.
NvmlDevice device_of(const Nvml& nvml, int cuda_device) {
  if (nvml.devices() == 1 && cuda_device == 0) return nvml.by_index(0);
  const std::string_view visible = variable("CUDA_VISIBLE_DEVICES");
  const std::string_view entry = visible.empty() ? "" : entry_of(visible, cuda_device);
  if (entry.starts_with("GPU-")) return nvml.by_uuid(std::string(entry));
  if (variable("CUDA_DEVICE_ORDER") == "PCI_BUS_ID") {
    unsigned index = 0;
    const std::string text = visible.empty() ? std::to_string(cuda_device) : std::string(entry);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    if (error == std::errc() && end == text.data() + text.size()) return nvml.by_index(index);
  }
  throw Error(
      fmt::format("which of NVML's {} devices CUDA device {} is cannot be told; set "
                  "CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to names (GPU-...)",
                  nvml.devices(), cuda_device));
}

class NvmlCounter : public EnergyCounter {
 public:
  NvmlCounter(const std::string& library, int cuda_device)
      : nvml_(library), device_(device_of(nvml_, cuda_device)), last_(nvml_.millijoules(device_)) {}

  double advance() override {
    const unsigned long long now = nvml_.millijoules(device_);
    if (now < last_) throw Error("the device's energy counter went back: its driver was reloaded");
    const double more = kMilli * static_cast<double>(now - last_);
    last_ = now;
    return more;
  }

 private:
  Nvml nvml_;
  NvmlDevice device_;
  unsigned long long last_;
};

}  // namespace

std::unique_ptr<EnergyCounter> nvml_counter(const std::string& library, int cuda_device) {
  return std::make_unique<NvmlCounter>(library, cuda_device);
}

}  // namespace reprise::app
