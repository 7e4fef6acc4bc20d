// The place and the precision of the steps: the device by its name, waiting for it, and autocast
// as a scope. Device-neutral: whatever accelerator LibTorch was built for.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <reprise/bytes.h>

#include <optional>
#include <string>

namespace reprise::app {

// "auto": the accelerator if there is one, else the CPU. Throws UsageError, naming what is
// available, for a name that is unknown or a device that is not here.
c10::Device parse_device(const std::string& text);

// Bytes that an accelerator's allocator has taken from the device, handed out or cached; 0 for the
// CPU.
Bytes reserved_bytes(c10::Device device);
// Bytes that this process can have of an accelerator: reserved_bytes(), and what is free. None where
// the device does not tell.
std::optional<Bytes> available_bytes(c10::Device device);

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
