// reprise_bench: runs benchmarks by name and prints their figures, as a table or as JSON lines.
#include <ATen/Parallel.h>

#include <reprise/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "benches.h"
#include "benchmarks/support/device.h"
#include "benchmarks/support/fresh_processes.h"

namespace {

using reprise::bench::all_benches;
using reprise::bench::Bench;

// The benchmarks that can run on the device.
std::vector<Bench> benches_on(c10::Device device) {
  std::vector<Bench> benches;
  for (const Bench& bench : all_benches()) {
    if (device.is_cpu() || bench.has_device) benches.push_back(bench);
  }
  return benches;
}

void list(c10::Device device) {
  for (const Bench& bench : benches_on(device)) {
    std::cout << bench.name << std::string(22 - bench.name.size(), ' ') << bench.summary << "\n";
  }
}

int run(const std::vector<std::string>& names, bool json, bool quick, c10::Device device) {
  const std::vector<Bench> benches = benches_on(device);
  for (const std::string& name : names) {
    if (name != "all" && std::ranges::find(benches, name, &Bench::name) == benches.end()) {
      throw reprise::UsageError(name +
                                " has no --device, for it measures the host; --list --device " +
                                device.str() + " names the benchmarks that have one");
    }
  }
  reprise::bench::Session session(json, quick, device);
  for (const std::string& name : names) {
    for (const Bench& bench : benches) {
      if (bench.name == name || name == "all") bench.run(session);
    }
  }
  session.finish();
  return session.all_ok() || quick ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Measures reprise against its peers. Exit code 1: a figure misses its bar (not with "
      "--quick).");
  std::vector<std::string> names;
  bool json = false;
  bool quick = false;
  bool only_list = false;
  std::string served;
  std::string device_name = "cpu";
  std::vector<std::string> known = {"all"};
  for (const Bench& bench : all_benches()) known.emplace_back(bench.name);
  app.add_option("NAME", names, "benchmarks to run, or all")->check(CLI::IsMember(known));
  app.add_flag("--list", only_list, "print the benchmarks' names and what they measure");
  app.add_flag("--json", json, "one JSON object a line, as soon as it is known");
  app.add_flag("--quick", quick, "short runs with rough figures, to see that all works");
  app.add_option("--device", device_name,
                 "measures on this device, such as cuda:0 (default cpu); all is then every "
                 "benchmark that has a device");
  app.add_option("--serve-side", served)->group("");  // for the program itself
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  try {
    const c10::Device device = reprise::bench::device_of(device_name);
    if (!served.empty()) {
      reprise::bench::serve_side(served, device);
      return 0;
    }
    if (only_list || names.empty()) {
      list(device);
      return only_list ? 0 : 2;
    }
    return run(names, json, quick, device);
  } catch (const std::exception& error) {
    std::cerr << "reprise_bench: " << error.what() << "\n";
    return 2;
  }
}
