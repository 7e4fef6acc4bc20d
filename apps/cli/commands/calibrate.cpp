// `reprise calibrate`: measures the rates that estimates use.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/estimate.h>

#include <CLI/App.hpp>
#include <memory>

#include "apps/cli/commands/commands.h"
#include "apps/cli/io/atomic_file.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/option_group.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/run_options.h"

namespace reprise::app {

namespace {

struct CalibrateOptions {
  int threads = 0;
  double seconds = 3;
  std::string out;
  bool json = false;
};

void bind(CLI::App& command, CalibrateOptions& options) {
  OptionGroup measuring(command, "Measuring");
  measuring.real("--seconds", options.seconds, {0.01, 3600}, "how long it may take");
  bind_threads(measuring, options.threads);
  OptionGroup output(command, "Output");
  output.path("--out", "FILE", options.out,
              "write the rates to it, for --machine of estimate and advise");
  output.flag("--json", options.json, "print the same JSON instead of a table");
}

int run_calibration(const CalibrateOptions& options) {
  const auto file =
      options.out.empty() ? nullptr : std::make_unique<AtomicFile>(options.out, "--out");
  if (options.threads > 0) at::set_num_threads(options.threads);
  const Machine machine = calibrate(std::chrono::duration<double>(options.seconds));
  if (file) {
    file->write(machine.json());
    file->take_place();
  }
  if (options.json) {
    print_result(machine.json());
    return 0;
  }
  Facts facts;
  facts.add("threads", std::to_string(at::get_num_threads()));
  facts.add("products, f32", fmt::format("{:.4g} GFLOP/s", machine.flops / 1e9));
  facts.add("products, bf16", fmt::format("{:.4g} GFLOP/s", machine.low_precision_flops / 1e9));
  facts.add("elementwise", fmt::format("{:.4g} GB/s", machine.bandwidth / 1e9));
  facts.add("every call", fmt::format("{:.3g} µs", 1e6 * machine.overhead.count()));
  print_result(facts.text());
  return 0;
}

}  // namespace

void add_calibrate(CLI::App& program, Chosen& chosen) {
  add_command<CalibrateOptions>(program, chosen, "calibrate",
                                "Measure the rates of this machine's CPU, for estimates",
                                run_calibration);
}

}  // namespace reprise::app
