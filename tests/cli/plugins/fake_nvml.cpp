// NVML's functions for the energy meter's tests, with devices whose counters a test sets.
struct FakeGpu {
  unsigned long long millijoules = 0;
};

namespace {

constexpr unsigned kMost = 4;

FakeGpu fake_gpus[kMost];
unsigned fake_count = 1;
int fake_energy_status = 0;
int fake_starts = 0;

}  // namespace

extern "C" {

void fake_nvml_set(unsigned count, unsigned device, unsigned long long millijoules, int status) {
  fake_count = count;
  fake_gpus[device].millijoules = millijoules;
  fake_energy_status = status;
}
int fake_nvml_starts() { return fake_starts; }

int nvmlInit_v2() { return ++fake_starts, 0; }
int nvmlShutdown() { return --fake_starts, 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = fake_count, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, FakeGpu** device) {
  if (index >= fake_count) return 2;
  *device = &fake_gpus[index];
  return 0;
}
// Their names are GPU-a, GPU-b, ...
int nvmlDeviceGetHandleByUUID(const char* name, FakeGpu** device) {
  return nvmlDeviceGetHandleByIndex_v2(static_cast<unsigned>(name[4] - 'a'), device);
}
int nvmlDeviceGetTotalEnergyConsumption(FakeGpu* device, unsigned long long* millijoules) {
  *millijoules = device->millijoules;
  return fake_energy_status;
}
const char* nvmlErrorString(int status) {
  return status == 2 ? "Invalid Argument" : "Not Supported";
}

}  // extern "C"
