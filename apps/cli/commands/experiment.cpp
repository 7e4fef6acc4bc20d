// `reprise experiment`: trains models under every method from several seeds, and writes what came
// of it. All that is measured is in a folder, so that a killed experiment goes on where it was.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "apps/cli/commands/commands.h"
#include "apps/cli/experiment/experiment_file.h"
#include "apps/cli/experiment/findings.h"
#include "apps/cli/experiment/folder_lock.h"
#include "apps/cli/experiment/run.h"
#include "apps/cli/experiment/run_lines.h"
#include "apps/cli/experiment/settings.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/progress.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

// Seeds one after another, so that early on there is something of every method; each begins with
// another method, for a machine that slows down or warms up.
std::vector<RunPlace> places_of(const ExperimentSettings& settings) {
  std::vector<std::string> methods = settings.methods;
  methods.insert(methods.end(), settings.ablations.begin(), settings.ablations.end());
  std::vector<RunPlace> places;
  for (std::int64_t seed = 1; seed <= settings.seed_count(); ++seed) {
    for (const std::string& model : settings.models) {
      for (const std::string& method : methods) places.push_back({model, method, seed});
    }
    std::ranges::rotate(methods, methods.begin() + 1);
  }
  return places;
}

class Experiment {
 public:
  Experiment(const ExperimentSettings& settings, const ExperimentFile& file)
      : settings_(settings), file_(file), places_(places_of(settings)) {
    std::vector<std::string> models;
    for (const RunPlace& place : places_) {
      if (is_complete(run_file(settings_.out, place))) {
        // Killed between the last line and this.
        remove_save(run_file(settings_.out, place));
        ++found_;
      } else if (std::ranges::count(models, place.model) == 0) {
        models.push_back(place.model);
      }
    }
    file_.check_data(settings_, models);
  }

  std::size_t found() const { return found_; }
  std::size_t count() const { return places_.size(); }

  // 0, or the signal that has ended it.
  int run(const InterruptScope& interrupt) {
    done_ = found_;
    for (const RunPlace& place : places_) {
      if (is_complete(run_file(settings_.out, place))) continue;
      const auto after_step = [&](std::int64_t step) {
        show(place, step);
        return interrupt.signal() == 0;
      };
      const bool is_done = train_run(settings_, place, file_.plain_peak(place.model), after_step);
      if (is_done) ++done_;
      if (interrupt.signal() != 0) return interrupt.signal();
    }
    return 0;
  }

 private:
  void show(const RunPlace& place, std::int64_t step) {
    const auto steps = static_cast<double>(settings_.step_count());
    const double runs_here =
        static_cast<double>(done_ - found_) + static_cast<double>(step) / steps;
    const double runs_left =
        static_cast<double>(places_.size() - done_) - static_cast<double>(step) / steps;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
    line_.show({fmt::format("run {} of {}", done_ + 1, places_.size()),
                fmt::format("{} left", format_duration(spent.count() / runs_here * runs_left)),
                fmt::format("{}, {}, seed {}", place.model, place.method, place.seed),
                fmt::format("step {} of {}", step, settings_.step_count())});
  }

  const ExperimentSettings& settings_;
  const ExperimentFile& file_;
  std::vector<RunPlace> places_;
  std::size_t found_ = 0, done_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  ProgressLine line_;
};

int run_experiment(ExperimentSettings settings, const std::string& command) {
  const InterruptScope interrupt;
  complete(settings);
  at::set_num_threads(settings.threads);
  const FolderLock lock(settings.out);
  const ExperimentFile file(settings, command);
  int signal = 0;
  std::size_t count = 0, found = 0;
  const auto begin = std::chrono::steady_clock::now();
  {
    Experiment experiment(settings, file);
    count = experiment.count();
    found = experiment.found();
    signal = experiment.run(interrupt);
  }
  if (signal != 0) {
    print_error_line(
        fmt::format("reprise experiment: interrupted; the same command goes on with what is in {}",
                    settings.out));
    return exit_code_of_signal(signal);
  }
  write_findings(settings.out, settings.report, "--report");
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (settings.json) {
    print_result(nlohmann::ordered_json{{"out", settings.out},
                                        {"report", settings.report},
                                        {"runs", count},
                                        {"found", found},
                                        {"seconds", taken.count()}}
                     .dump() +
                 "\n");
    return 0;
  }
  Facts facts;
  facts.add("runs", found == 0 ? std::to_string(count)
                               : fmt::format("{}, {} of them there before", count, found));
  facts.add("time", format_duration(taken.count()));
  facts.add("measured", settings.out);
  facts.add("report", settings.report);
  print_result(facts.text());
  return 0;
}

}  // namespace

void add_experiment(CLI::App& program, Chosen& chosen, const std::string& command_line) {
  auto* command = program.add_subcommand(
      "experiment", "Train under PGAC and its baselines, and compare what came of it");
  auto settings = std::make_shared<ExperimentSettings>();
  bind(*command, *settings);
  command->callback([settings, command_line, &chosen] {
    chosen = [settings, command_line] { return run_experiment(*settings, command_line); };
  });
}

}  // namespace reprise::app
