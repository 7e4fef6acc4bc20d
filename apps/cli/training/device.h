// The place and the precision of the steps: the device by its name, waiting for it, and autocast
// as a scope. Device-neutral: whatever accelerator LibTorch was built for.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace reprise::app {

// "auto": the accelerator if there is one, else the CPU. Throws UsageError, naming what is
// available, for a name that is unknown or a device that is not here.
c10::Device parse_device(const std::string& text);

// Throws UsageError, naming the option, if that device is not the CPU: budgets are kept there alone
// so far.
void require_cpu_for_budget(const std::string& option, const std::string& device);

// Waits until the device has done what it was given. Nothing to wait for on the CPU.
void synchronize(c10::Device device);

// "cpu", or "cpu, cuda:0, cuda:1".
std::string available_devices();

// Autocast to bfloat16 on the device's type while the scope lives, if `dtype` is "bf16"; as
// autocast's own scopes do, the cache of cast weights is dropped at the end.
class Autocast {
 public:
  Autocast(c10::Device device, const std::string& dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType type_;
  bool active_;
  bool enabled_before_ = false;
  c10::ScalarType dtype_before_ = c10::ScalarType::Float;
};

}  // namespace reprise::app
