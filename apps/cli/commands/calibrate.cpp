// `reprise calibrate`: measures the rates that estimates are made with.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/estimate.h>

#include <CLI/App.hpp>
#include <memory>

#include "apps/cli/commands/commands.h"
#include "apps/cli/commands/estimate_options.h"
#include "apps/cli/commands/option_group.h"
#include "apps/cli/commands/options.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/new_file.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

struct CalibrateOptions {
  int threads = 0;
  double seconds = 3;
  std::string out;
  bool json = false;
};

int run_calibration(const CalibrateOptions& options) {
  const auto file = options.out.empty() ? nullptr : std::make_unique<NewFile>(options.out, "--out");
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
  auto* command = program.add_subcommand(
      "calibrate", "Measure the rates of this machine's CPU that estimates are made with");
  auto options = std::make_shared<CalibrateOptions>();
  OptionGroup measuring(*command, "Measuring");
  measuring.real("--seconds", options->seconds, {.least = 0.01, .most = 3600}, "that it may take");
  measuring.whole("--threads", options->threads, {0, most_threads()},
                  "CPU threads; 0: as many as LibTorch chooses");
  OptionGroup output(*command, "Output");
  output.path("--out", "FILE", options->out,
              "write the rates to it, for --machine of estimate and advise");
  output.flag("--json", options->json, "print the same JSON instead of a table");
  command->callback(
      [options, &chosen] { chosen = [options] { return run_calibration(*options); }; });
}

}  // namespace reprise::app
