// reprise_bench: runs benchmarks by name and prints their figures, as a table or as JSON lines.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "benches.h"
#include "benchmarks/support/fresh_processes.h"

namespace {

using reprise::bench::all_benches;
using reprise::bench::Bench;

void list() {
  for (const Bench& bench : all_benches()) {
    std::cout << bench.name << std::string(20 - bench.name.size(), ' ') << bench.summary << "\n";
  }
}

int run(const std::vector<std::string>& names, bool json, bool quick) {
  reprise::bench::Session session(json, quick);
  for (const std::string& name : names) {
    for (const Bench& bench : all_benches()) {
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
  std::vector<std::string> known = {"all"};
  for (const Bench& bench : all_benches()) known.emplace_back(bench.name);
  app.add_option("NAME", names, "benchmarks to run, or all")->check(CLI::IsMember(known));
  app.add_flag("--list", only_list, "print the benchmarks' names and what they measure");
  app.add_flag("--json", json, "one JSON object a line, as soon as it is known");
  app.add_flag("--quick", quick, "short runs with rough figures, to see that all works");
  app.add_option("--serve-side", served)->group("");  // for the program itself
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  if (!served.empty()) {
    reprise::bench::serve_side(served);
    return 0;
  }
  if (only_list || names.empty()) {
    list();
    return only_list ? 0 : 2;
  }
  try {
    return run(names, json, quick);
  } catch (const std::exception& error) {
    std::cerr << "reprise_bench: " << error.what() << "\n";
    return 2;
  }
}
