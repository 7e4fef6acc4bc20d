// `reprise plan`: which stages of a chain to keep and which to run again, in how many bytes and at
// what cost, before any step is run; for a step's trace, which operators (plan_step.h); and the
// timeline of a pipeline (plan_pipeline.h).
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/planners.h>
#include <reprise/sequential.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/commands/commands.h"
#include "apps/cli/commands/plan_options.h"
#include "apps/cli/commands/plan_pipeline.h"
#include "apps/cli/commands/plan_step.h"
#include "apps/cli/io/atomic_file.h"
#include "apps/cli/io/failure.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/network.h"

namespace reprise::app {

namespace {

struct Planned {
  std::string planner;
  Bytes budget;
  std::optional<Schedule> schedule;
  ScheduleCost cost;
  std::string failure;  // why there is no schedule
};

// Measures the blocks of the model, each as it runs in training.
Chain measured_chain(const PlanOptions& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  const c10::Device device = parse_device(options.device);
  Network network(options, device);
  std::vector<TensorFunction> functions;
  for (const models::GptBlock& block : network.model()->blocks()) {
    functions.push_back([block = block.ptr(), device, dtype = options.dtype](const at::Tensor& x) {
      const Autocast autocast(device, dtype);
      return block->forward(x);
    });
  }
  const auto whole = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor tokens =
      at::randint(options.gpt.vocabulary, {options.batch, options.gpt.context}, whole);
  at::Tensor sample = network.model()->embed(tokens).detach().requires_grad_();
  Chain chain = profile_chain(functions, sample, network.model()->parameters());
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    chain.stages[i].name = fmt::format("block {}", i);
  }
  return chain;
}

ChainPlanner planner_of(const PlanOptions& options, const std::string& name) {
  if (name != kOffloadPlanner) return planner_named(name);
  return [store = TransferRate{options.store_bandwidth}](const Chain& chain, Bytes budget) {
    return planners::rotor_offload(chain, budget, store);
  };
}

std::vector<Planned> plan_all(const PlanOptions& options, const Chain& chain, Bytes plain_peak) {
  std::vector<Planned> all;
  for (const std::string& planner : options.planners) {
    for (const AskedBudget& budget : options.budgets) {
      Planned& row = all.emplace_back(Planned{planner, budget.of_peak(plain_peak), {}, {}, {}});
      try {
        row.schedule = planner_of(options, planner)(chain, row.budget);
        row.cost = evaluate(chain, *row.schedule, {options.store_bandwidth});
      } catch (const BudgetError& error) {
        row.failure = error.what();
      }
    }
  }
  return all;
}

double slowdown(const Chain& chain, const ScheduleCost& cost) {
  const auto plain = chain.forward() + chain.backward();
  return plain.count() > 0 ? cost.time / plain : 1;
}

void print_table(const PlanOptions& options, const Chain& chain, Bytes plain_peak,
                 const std::vector<Planned>& all) {
  Facts facts;
  facts.add("chain", options.file.empty() ? fmt::format("{} blocks, measured", options.model)
                                          : options.file);
  facts.add("stages", std::to_string(chain.stages.size()));
  facts.add("all kept",
            fmt::format("{} ms in {}",
                        format_milliseconds(1e3 * (chain.forward() + chain.backward()).count()),
                        to_string(plain_peak)));
  print_result(facts.text() + "\n");
  TextTable table({"planner", "budget", "of plain", "peak", "time", "slowdown", "run again"});
  for (const Planned& each : all) {
    const bool fits = each.schedule.has_value();
    const auto stages = std::ssize(chain.stages);
    table.add({each.planner, to_string(each.budget),
               fmt::format("{:.1f} %", 100 * share(each.budget, plain_peak)),
               fits ? to_string(each.cost.peak) : "does not fit",
               fits ? format_milliseconds(1e3 * each.cost.time.count()) + " ms" : "-",
               fits ? fmt::format("{:.3f}×", slowdown(chain, each.cost)) : "-",
               fits ? fmt::format("{} stages", each.cost.forwards - stages) : "-"});
  }
  print_result(table.text() + "\n");
  // A picture of more columns would be broken into lines.
  constexpr std::size_t kWidest = 100;
  if (all.size() == 1 && all[0].schedule && all[0].schedule->ops.size() <= kWidest) {
    print_result(picture(chain, *all[0].schedule, {options.store_bandwidth}) + "\n");
  }
}

void print_json(const PlanOptions& options, const Chain& chain, Bytes plain_peak,
                const std::vector<Planned>& all) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Planned& each : all) {
    nlohmann::json row = {{"planner", each.planner},
                          {"budget_bytes", each.budget.count},
                          {"fits", each.schedule.has_value()}};
    if (each.schedule) {
      row.update({{"peak_bytes", each.cost.peak.count},
                  {"seconds", each.cost.time.count()},
                  {"recompute_seconds", each.cost.recompute.count()},
                  {"transfer_seconds", each.cost.transfer.count()},
                  {"slowdown", slowdown(chain, each.cost)},
                  {"forwards", each.cost.forwards},
                  {"schedule", nlohmann::json::parse(each.schedule->json())}});
    } else {
      row["failure"] = each.failure;
    }
    rows.push_back(std::move(row));
  }
  const nlohmann::json result = {{"chain", nlohmann::json::parse(chain.json())},
                                 {"source", options.file.empty() ? options.model : options.file},
                                 {"plain_peak_bytes", plain_peak.count},
                                 {"forward_seconds", chain.forward().count()},
                                 {"backward_seconds", chain.backward().count()},
                                 {"plans", std::move(rows)}};
  print_object(result);
}

std::unique_ptr<AtomicFile> begin(const std::string& path, const char* option) {
  return path.empty() ? nullptr : std::make_unique<AtomicFile>(path, option);
}

void write_out(const std::unique_ptr<AtomicFile>& file, const std::string& text) {
  if (file == nullptr) return;
  file->write(text);
  file->take_place();
}

int plan(PlanOptions options) {
  check(options);
  if (options.pipeline) return plan_pipeline(options);
  if (options.is_trace) return plan_step(options);
  const auto picture_file = begin(options.picture, "--picture");
  const auto schedule_file = begin(options.schedule_out, "--schedule-out");
  const auto chain_file = begin(options.chain_out, "--chain-out");
  const Chain chain = options.file.empty() ? measured_chain(options) : Chain::read(options.file);
  // Written first, because measuring takes longest.
  write_out(chain_file, chain.json());
  const Bytes plain_peak = evaluate(chain, planners::keep_all(chain)).peak;
  const std::vector<Planned> all = plan_all(options, chain, plain_peak);
  options.json ? print_json(options, chain, plain_peak, all)
               : print_table(options, chain, plain_peak, all);
  if (all[0].schedule) {
    write_out(schedule_file, all[0].schedule->json());
    if (picture_file)
      write_out(picture_file, picture_svg(chain, *all[0].schedule, {options.store_bandwidth}));
  }
  const auto fits = [](const Planned& each) { return each.schedule.has_value(); };
  if (std::ranges::any_of(all, fits)) return 0;
  print_error_line("reprise plan: " + all.back().failure);
  return kOverBudget;
}

}  // namespace

void add_plan(CLI::App& program, Chosen& chosen) {
  add_command<PlanOptions>(program, chosen, "plan",
                           "Plan which stages of a chain run again, or how a pipeline runs", plan);
}

}  // namespace reprise::app
