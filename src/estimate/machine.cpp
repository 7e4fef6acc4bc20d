// The roofline, and the file that calibrate() is kept in.
#include "estimate/machine_rates.h"

#include <c10/util/StringUtil.h>
#include <reprise/error.h>
#include <reprise/estimate.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/io/json_tree.h"
#include "plan/io/text_file.h"

namespace reprise {

namespace {

constexpr std::string_view kMachineFormat = "reprise machine";
constexpr std::int64_t kMachineVersion = 1;
using estimate::kMachineRates;
using estimate::MachineRate;

template <double Machine::*kMember>
constexpr MachineRate rate(const char* name, const char* field_name) {
  return {name,
          field_name,
          1,
          1e24,
          [](const Machine& machine) { return machine.*kMember; },
          [](Machine& machine, double value) { machine.*kMember = value; }};
}

constexpr MachineRate kOverheadRate = {
    "overhead",
    "seconds_per_call",
    0,
    1,
    [](const Machine& machine) { return machine.overhead.count(); },
    [](Machine& machine, double value) { machine.overhead = Seconds(value); }};

}  // namespace

namespace estimate {

constinit const std::array<MachineRate, 4> kMachineRates = {
    rate<&Machine::flops>("flops", "f32_flops_per_second"),
    rate<&Machine::low_precision_flops>("low_precision_flops", "low_precision_flops_per_second"),
    rate<&Machine::bandwidth>("bandwidth", "bytes_per_second"), kOverheadRate};

void check_rates(const Machine& machine, const char* caller) {
  for (const MachineRate& each : kMachineRates) {
    const double value = each.get(machine);
    if (value >= each.least && value <= each.most) continue;
    throw UsageError(c10::str(caller, ": the machine's ", each.name, " is ", value,
                              "; it must be from ", each.least, " to ", each.most,
                              ": take that of calibrate(), or of a data sheet"));
  }
}

}  // namespace estimate

Seconds Machine::seconds(double flops_done, double bytes_moved, bool is_low_precision) const {
  const double rate = is_low_precision ? low_precision_flops : flops;
  return overhead + Seconds(std::max(flops_done / rate, bytes_moved / bandwidth));
}

Machine Machine::parse(std::string_view text, const std::string& origin) {
  const plan::JsonTree tree = plan::JsonTree::parse(text, origin);
  plan::expect_format(tree, kMachineFormat, kMachineVersion);
  tree.allow({"format", "version", kMachineRates[0].field_name, kMachineRates[1].field_name,
              kMachineRates[2].field_name, kMachineRates[3].field_name});
  Machine machine;
  for (const MachineRate& each : kMachineRates) {
    each.set(machine, tree.at(each.field_name).number(each.least, each.most));
  }
  return machine;
}

Machine Machine::read(const std::filesystem::path& file) {
  return parse(plan::read_text_file(file, "the machine", plan::JsonTree::kMostText), file.string());
}

std::string Machine::json() const {
  estimate::check_rates(*this, "Machine::json()");
  nlohmann::ordered_json tree = {{"format", kMachineFormat}, {"version", kMachineVersion}};
  for (const MachineRate& each : kMachineRates) tree[each.field_name] = each.get(*this);
  return tree.dump(2) + "\n";
}

}  // namespace reprise
