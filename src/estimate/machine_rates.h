// Between what a machine's rates must lie, wherever they come from.
#pragma once

#include <reprise/estimate.h>

#include <array>

namespace reprise::estimate {

struct MachineRate {
  const char* name;        // of the member
  const char* field_name;  // in files
  double least, most;      // far beyond any machine; the least rate keeps times finite
  double (*get)(const Machine& machine);
  void (*set)(Machine& machine, double value);
};

extern const std::array<MachineRate, 4> kMachineRates;

// Throws UsageError for a rate that is not between its bounds, naming it.
void check_rates(const Machine& machine, const char* caller);

}  // namespace reprise::estimate
