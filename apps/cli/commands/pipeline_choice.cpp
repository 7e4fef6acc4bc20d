#include "apps/cli/commands/pipeline_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <map>

#include "apps/cli/io/option_group.h"

namespace reprise::app {

namespace {

constexpr WholeRange kPipelineSize{1, 1 << 22};
constexpr const char* kPipelineForm =
    "give schedule=NAME,stages=N,chunks=N, or csv=FILE; further checkpoint= and per-worker=";

std::map<std::string, std::string> pipeline_keys(const std::string& option,
                                                 const std::string& text) {
  std::map<std::string, std::string> keys;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t sign = part.find('=');
    if (sign == std::string::npos || sign + 1 == part.size()) {
      throw UsageError(
          fmt::format("{} has '{}', which is no KEY=VALUE: {}", option, part, kPipelineForm));
    }
    if (!keys.emplace(part.substr(0, sign), part.substr(sign + 1)).second) {
      throw UsageError(
          fmt::format("{} has {} twice: leave one of them out", option, part.substr(0, sign)));
    }
    begin = end + 1;
  }
  return keys;
}

void check_checkpoint(const std::string& option, const std::string& value) {
  if (value == "always" || value == "except_last" || value == "never") return;
  try {
    read_whole(option, value, {0, kPipelineSize.most});
  } catch (const UsageError&) {
    throw UsageError(fmt::format(
        "{} is '{}': choose always, except_last, never, or how many micro-batches of the first",
        option, value));
  }
}

}  // namespace

PipelineChoice PipelineChoice::parse(const std::string& option, const std::string& text) {
  std::map<std::string, std::string> keys = pipeline_keys(option, text);
  PipelineChoice choice;
  const auto take = [&](const char* key) {
    const auto found = keys.find(key);
    if (found == keys.end()) return std::string();
    const std::string value = found->second;
    keys.erase(found);
    return value;
  };
  const auto take_size = [&](const char* key, std::int64_t if_missing) {
    const std::string value = take(key);
    if (!value.empty()) return read_whole(option + " " + key, value, kPipelineSize);
    if (if_missing > 0) return if_missing;
    throw UsageError(fmt::format("{} lacks {}: {}", option, key, kPipelineForm));
  };
  choice.csv = take("csv");
  if (choice.csv.empty()) {
    choice.schedule = take("schedule");
    if (choice.schedule.empty()) {
      throw UsageError(fmt::format("{} lacks schedule: {}", option, kPipelineForm));
    }
    if (std::ranges::count(schedules::names(), choice.schedule) == 0) {
      throw UsageError(fmt::format("{} schedule is '{}': choose from {}", option, choice.schedule,
                                   fmt::join(schedules::names(), ", ")));
    }
    const bool has_one = choice.schedule == "gpipe" || choice.schedule == "1f1b";
    choice.stages = take_size("stages", 0);
    choice.chunks = take_size("chunks", 0);
    choice.per_worker = take_size("per-worker", has_one ? 1 : 2);
    if (choice.stages % choice.per_worker != 0) {
      throw UsageError(fmt::format(
          "{} stages is {}, and each worker runs {}: give a multiple of that, or another "
          "per-worker",
          option, choice.stages, choice.per_worker));
    }
  }
  if (const std::string value = take("checkpoint"); !value.empty()) choice.checkpoint = value;
  check_checkpoint(option + " checkpoint", choice.checkpoint);
  if (!keys.empty()) {
    const std::string& key = keys.begin()->first;
    const bool is_beside_csv = !choice.csv.empty() && (key == "schedule" || key == "stages" ||
                                                       key == "chunks" || key == "per-worker");
    throw UsageError(
        is_beside_csv
            ? fmt::format("{} has {} beside csv, whose table has it: leave {} out", option, key,
                          key)
            : fmt::format("{} has '{}', which is no key: {}", option, key, kPipelineForm));
  }
  return choice;
}

PipelineSchedule PipelineChoice::make() const {
  if (!csv.empty()) {
    try {
      return PipelineSchedule::read_csv(csv);
    } catch (const PlanError& error) {
      throw UsageError(error.what());  // a file of the user
    }
  }
  return schedules::by_name(schedule, stages / per_worker, per_worker, chunks);
}

std::int64_t PipelineChoice::checkpoint_stop(const PipelineSchedule& made) const {
  if (checkpoint == "never") return 0;
  if (checkpoint == "always") return made.micro_batches;
  if (checkpoint == "except_last") return made.micro_batches - 1;
  return std::min(read_whole("checkpoint", checkpoint, {0, kPipelineSize.most}),
                  made.micro_batches);
}

}  // namespace reprise::app
