#include "apps/cli/training/pipelined/pipeline_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "apps/cli/io/option_group.h"

namespace reprise::app {

namespace {

constexpr WholeRange kPipelineSize{1, 1 << 22};

// Defaults and remedies differ between a pipeline that is planned and one that runs.
struct PipelineForm {
  char separator = ',';
  const char* schedule = "";  // the default ones; "": it must be given
  const char* checkpoint = "never";
  const char* balance = "";  // "": there is none
  const char* remedy =
      "give schedule=NAME,stages=N,chunks=N, or csv=FILE; further checkpoint= and per-worker=";
};

constexpr PipelineForm kRun{
    .schedule = "1f1b",
    .checkpoint = "except_last",
    .balance = "time",
    .remedy =
        "give stages=N,chunks=N, or csv=FILE; further schedule=, checkpoint=, balance= and "
        "per-worker="};
constexpr PipelineForm kStrategy{
    .separator = ':',
    .schedule = kRun.schedule,
    .checkpoint = kRun.checkpoint,
    .balance = kRun.balance,
    .remedy =
        "give pipeline:stages=N:chunks=N, or pipeline:csv=FILE; further :schedule=, "
        ":checkpoint=, :balance= and :per-worker="};

class PipelineKeys {
 public:
  PipelineKeys(const std::string& option, const std::string& text, const PipelineForm& form)
      : option_(option), form_(form) {
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(form.separator, begin), text.size());
      add(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  std::string take(const char* key, const std::string& if_missing = "") {
    const auto found = keys_.find(key);
    if (found == keys_.end()) return if_missing;
    std::string value = std::move(found->second);
    keys_.erase(found);
    return value;
  }
  std::int64_t take_size(const char* key, std::int64_t if_missing = 0) {
    const std::string value = take(key);
    if (!value.empty()) return read_whole(option_ + " " + key, value, kPipelineSize);
    if (if_missing > 0) return if_missing;
    throw UsageError(fmt::format("{} lacks {}: {}", option_, key, form_.remedy));
  }
  void refuse_rest(bool is_table) const {
    if (keys_.empty()) return;
    const std::string& key = keys_.begin()->first;
    const bool is_of_table =
        key == "schedule" || key == "stages" || key == "chunks" || key == "per-worker";
    throw UsageError(
        is_table && is_of_table
            ? fmt::format("{} has {} beside csv, whose table has it: leave {} out", option_, key,
                          key)
            : fmt::format("{} has '{}', which is no key: {}", option_, key, form_.remedy));
  }

 private:
  void add(const std::string& part) {
    const std::size_t sign = part.find('=');
    if (sign == std::string::npos || sign + 1 == part.size()) {
      throw UsageError(
          fmt::format("{} has '{}', which is no KEY=VALUE: {}", option_, part, form_.remedy));
    }
    if (!keys_.emplace(part.substr(0, sign), part.substr(sign + 1)).second) {
      throw UsageError(
          fmt::format("{} has {} twice: leave one of them out", option_, part.substr(0, sign)));
    }
  }

  const std::string& option_;
  const PipelineForm& form_;
  std::map<std::string, std::string> keys_;
};

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

std::vector<std::int64_t> numbers_of(const std::string& option, const std::string& balance) {
  std::vector<std::int64_t> numbers;
  for (std::size_t begin = 0; begin <= balance.size();) {
    const std::size_t end = std::min(balance.find('+', begin), balance.size());
    numbers.push_back(read_whole(option, balance.substr(begin, end - begin), kPipelineSize));
    begin = end + 1;
  }
  return numbers;
}

void check_balance(const std::string& option, const std::string& value) {
  if (value.empty() || value == "time" || value == "bytes") return;
  try {
    numbers_of(option, value);
  } catch (const UsageError&) {
    throw UsageError(fmt::format(
        "{} is '{}': choose time, bytes, or the layers of each stage, such as 3+4", option, value));
  }
}

PipelineChoice read_pipeline(const std::string& option, const std::string& text,
                             const PipelineForm& form) {
  PipelineKeys keys(option, text, form);
  PipelineChoice choice;
  choice.text = text;
  choice.csv = keys.take("csv");
  if (choice.csv.empty()) {
    choice.schedule = keys.take("schedule", form.schedule);
    if (choice.schedule.empty()) {
      throw UsageError(fmt::format("{} lacks schedule: {}", option, form.remedy));
    }
    if (std::ranges::count(schedules::names(), choice.schedule) == 0) {
      throw UsageError(fmt::format("{} schedule is '{}': choose from {}", option, choice.schedule,
                                   fmt::join(schedules::names(), ", ")));
    }
    const bool has_one = choice.schedule == "gpipe" || choice.schedule == "1f1b";
    choice.stages = keys.take_size("stages");
    choice.chunks = keys.take_size("chunks");
    choice.per_worker = keys.take_size("per-worker", has_one ? 1 : 2);
    if (choice.stages % choice.per_worker != 0) {
      throw UsageError(fmt::format(
          "{} stages is {}, and each worker runs {}: give a multiple of that, or another "
          "per-worker",
          option, choice.stages, choice.per_worker));
    }
  }
  choice.checkpoint = keys.take("checkpoint", form.checkpoint);
  check_checkpoint(option + " checkpoint", choice.checkpoint);
  if (*form.balance != '\0') choice.balance = keys.take("balance", form.balance);
  check_balance(option + " balance", choice.balance);
  keys.refuse_rest(!choice.csv.empty());
  return choice;
}

}  // namespace

PipelineChoice PipelineChoice::parse(const std::string& option, const std::string& text) {
  return read_pipeline(option, text, PipelineForm());
}

PipelineChoice PipelineChoice::parse_run(const std::string& option, const std::string& text) {
  return read_pipeline(option, text, kRun);
}

std::optional<PipelineChoice> PipelineChoice::of_strategy(const std::string& strategy) {
  constexpr std::string_view kKind = "pipeline";
  if (!strategy.starts_with(kKind)) return std::nullopt;
  const std::string rest = strategy.substr(kKind.size());
  if (!rest.empty() && rest.front() != ':') return std::nullopt;
  return read_pipeline("strategy pipeline", rest.empty() ? rest : rest.substr(1), kStrategy);
}

void PipelineChoice::check_run(const std::string& option, std::int64_t layers,
                               std::int64_t batch) const {
  const PipelineSchedule made = make();
  if (made.stages > layers) {
    throw UsageError(fmt::format(
        "{} has {} stages, and the model has {} layers, the embedding and its blocks: give at most "
        "{} stages, or more --layers",
        option, made.stages, layers, layers));
  }
  const std::int64_t each = (batch + made.micro_batches - 1) / made.micro_batches;
  if (const std::int64_t cut = (batch + each - 1) / each; cut != made.micro_batches) {
    throw UsageError(fmt::format(
        "{} has {} micro-batches (chunks), and --batch {} makes {}, of {} and fewer for the last: "
        "give a --batch that is a multiple of the chunks",
        option, made.micro_batches, batch, cut, each));
  }
  const std::vector<std::int64_t> each_stage = layers_of_stages();
  if (each_stage.empty()) return;
  const auto sum = std::accumulate(each_stage.begin(), each_stage.end(), std::int64_t{0});
  if (std::ssize(each_stage) == made.stages && sum == layers) return;
  throw UsageError(fmt::format(
      "{} balance is {}, {} layers in {} stages, and the model has {} layers, the embedding and its "
      "blocks, in {} stages: give as many numbers as stages, which add up to the layers",
      option, balance, sum, each_stage.size(), layers, made.stages));
}

std::vector<std::int64_t> PipelineChoice::layers_of_stages() const {
  if (balance.empty() || balance == "time" || balance == "bytes") return {};
  return numbers_of("balance", balance);
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
