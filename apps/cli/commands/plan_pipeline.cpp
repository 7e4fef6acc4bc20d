// Without a chain all stages are alike, and times are in forwards of a stage. With one, its stages
// are cut into the pipeline's by balance, and its figures are taken as those of one micro-batch.
#include "apps/cli/commands/plan_pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/chain.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "apps/cli/io/atomic_file.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

struct PlannedPipeline {
  PipelineSchedule schedule;
  std::int64_t checkpoint_stop = 0;
  std::vector<std::vector<std::int64_t>> stages;  // of each worker
  std::vector<std::int64_t> cut;  // stages of the chain in each of the pipeline's; empty: no chain
  PipelineLives lives;
  PipelineTimeline timeline;
};

// One stage of the pipeline from consecutive stages of a chain. Temporaries are those of the stage
// that needs most of them, with both gradients of its backward. Nobody knows which part of the saved
// bytes weight gradients need, so all count.
PipelineStageCosts costs_of_stages(std::span<const ChainStage> stages, Bytes input,
                                   Bytes input_gradient) {
  PipelineStageCosts costs;
  costs.input = input;
  for (const ChainStage& stage : stages) {
    costs.forward += stage.forward;
    costs.backward += stage.backward;
    costs.saved += stage.saved;
    costs.resident += stage.parameter_gradients;
    const Bytes forward = stage.keep_temporaries + (stage.saves_output ? Bytes(0) : stage.output);
    const Bytes backward =
        std::max(Bytes(0), stage.backward_temporaries) + stage.output_gradient + input_gradient;
    costs.temporaries = std::max({costs.temporaries, forward, backward});
    input_gradient = stage.output_gradient;
  }
  costs.recompute = costs.forward;
  costs.saved_for_weights = costs.input + costs.saved;
  return costs;
}

PipelineCosts costs_of_chain(const Chain& chain, const std::vector<std::int64_t>& cut) {
  PipelineCosts costs;
  std::span<const ChainStage> rest = chain.stages;
  Bytes input, input_gradient = chain.input_gradient;
  for (const std::int64_t count : cut) {
    const auto stages = rest.first(static_cast<std::size_t>(count));
    costs.stages.push_back(costs_of_stages(stages, input, input_gradient));
    input = stages.back().output;
    input_gradient = stages.back().output_gradient;
    rest = rest.subspan(stages.size());
  }
  return costs;
}

std::vector<std::vector<std::int64_t>> stages_of_workers(const PipelineSchedule& schedule) {
  std::vector<std::vector<std::int64_t>> stages(schedule.workers.size());
  std::int64_t stage = 0;
  for (const std::int64_t worker : schedule.worker_of_stage()) {
    stages[static_cast<std::size_t>(worker)].push_back(stage++);
  }
  return stages;
}

PlannedPipeline planned_pipeline(const PlanOptions& options) {
  PlannedPipeline planned;
  planned.schedule = options.pipeline->make();
  planned.checkpoint_stop = options.pipeline->checkpoint_stop(planned.schedule);
  planned.stages = stages_of_workers(planned.schedule);
  PipelineCosts costs = PipelineCosts::even(planned.schedule.stages);
  if (!options.file.empty()) {
    const Chain chain = Chain::read(options.file);
    std::vector<double> seconds;
    for (const ChainStage& stage : chain.stages) {
      seconds.push_back((stage.forward + stage.backward).count());
    }
    planned.cut = balance_by_cost(seconds, planned.schedule.stages);
    costs = costs_of_chain(chain, planned.cut);
  }
  planned.lives = activation_lives(planned.schedule, planned.checkpoint_stop);
  planned.timeline =
      simulate(planned.schedule, costs, {.checkpoint_stop = planned.checkpoint_stop});
  return planned;
}

std::string pipeline_time(const PlannedPipeline& planned, Seconds time) {
  return planned.cut.empty() ? fmt::format("{:g}", time.count())
                             : format_milliseconds(1e3 * time.count()) + " ms";
}

void print_pipeline_table(const PlanOptions& options, const PlannedPipeline& planned) {
  const PipelineSchedule& schedule = planned.schedule;
  Facts facts;
  facts.add("schedule", options.pipeline->csv.empty() ? schedule.name : options.pipeline->csv);
  facts.add("sizes", fmt::format("{} stages on {} workers, {} micro-batches", schedule.stages,
                                 schedule.workers.size(), schedule.micro_batches));
  facts.add("checkpointed",
            fmt::format("{} of {} micro-batches", planned.checkpoint_stop, schedule.micro_batches));
  if (planned.cut.empty()) {
    facts.add("times", "in forwards of a stage; a backward takes 2, a recomputation 1");
  } else {
    facts.add("chain", fmt::format("{}, of one micro-batch; its stages are cut into {}",
                                   options.file, fmt::join(planned.cut, ", ")));
  }
  facts.add("step", pipeline_time(planned, planned.timeline.time));
  facts.add("bubble", fmt::format("{:.1f} %", 100 * planned.timeline.bubble));
  print_result(facts.text() + "\n");
  std::vector<std::string> header = {"worker",      "stages",      "busy",
                                     "activations", "inputs kept", "buffers"};
  if (!planned.cut.empty()) header.emplace_back("peak");
  TextTable table(header);
  for (std::size_t i = 0; i < schedule.workers.size(); ++i) {
    const PipelineLives::Worker& lives = planned.lives.workers[i];
    const PipelineTimeline::Worker& worker = planned.timeline.workers[i];
    std::vector<std::string> row = {std::to_string(i),
                                    fmt::format("{}", fmt::join(planned.stages[i], ", ")),
                                    pipeline_time(planned, worker.busy),
                                    std::to_string(lives.peak_kept),
                                    std::to_string(lives.peak_checkpointed),
                                    std::to_string(lives.buffers)};
    if (!planned.cut.empty()) row.push_back(to_string(worker.peak));
    table.add(row);
  }
  print_result(table.text() + "\n" + planned.timeline.text() + "\n");
}

void print_pipeline_json(const PlannedPipeline& planned) {
  const PipelineSchedule& schedule = planned.schedule;
  nlohmann::json workers = nlohmann::json::array();
  const char* const unit = planned.cut.empty() ? "forwards" : "seconds";
  for (std::size_t i = 0; i < schedule.workers.size(); ++i) {
    const PipelineLives::Worker& lives = planned.lives.workers[i];
    nlohmann::json row = {{"stages", planned.stages[i]},
                          {std::string("busy_") + unit, planned.timeline.workers[i].busy.count()},
                          {"activations", lives.peak_kept},
                          {"checkpointed_inputs", lives.peak_checkpointed},
                          {"buffers", lives.buffers}};
    if (!planned.cut.empty()) row["peak_bytes"] = planned.timeline.workers[i].peak.count;
    workers.push_back(std::move(row));
  }
  nlohmann::json result = {{"schedule", schedule.name},
                           {"stages", schedule.stages},
                           {"micro_batches", schedule.micro_batches},
                           {"checkpoint_stop", planned.checkpoint_stop},
                           {unit, planned.timeline.time.count()},
                           {"bubble", planned.timeline.bubble},
                           {"workers", std::move(workers)},
                           {"csv", schedule.csv()}};
  if (!planned.cut.empty()) result["cut"] = planned.cut;
  print_object(result);
}

}  // namespace

int plan_pipeline(const PlanOptions& options) {
  std::vector<std::unique_ptr<AtomicFile>> files;
  const auto begin = [&](const std::string& path, const char* option) {
    files.push_back(path.empty() ? nullptr : std::make_unique<AtomicFile>(path, option));
  };
  begin(options.picture, "--picture");
  begin(options.schedule_out, "--schedule-out");
  begin(options.trace_out, "--trace-out");
  const PlannedPipeline planned = planned_pipeline(options);
  options.json ? print_pipeline_json(planned) : print_pipeline_table(options, planned);
  const auto write = [&](std::size_t i, const auto& text) {
    if (files[i] == nullptr) return;
    files[i]->write(text());
    files[i]->take_place();
  };
  write(0, [&] { return planned.timeline.svg(); });
  write(1, [&] { return planned.schedule.csv(); });
  write(2, [&] { return planned.timeline.chrome_trace(); });
  return 0;
}

}  // namespace reprise::app
