// Pipeline schedules as data and as text. The text is that of torch.distributed.pipelining, so that
// a table can go from one library to the other.
#include <reprise/error.h>
#include <reprise/pipeline_schedule.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "plan/io/text_file.h"
#include "plan/pipeline/action_order.h"

namespace reprise {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::string_view kMovements[] = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                           "UNSHARD", "RESHARD", "REDUCE_GRAD"};
constexpr std::size_t kMostCsv = std::size_t{256} << 20;

char letter_of_work(PipelineWork work) {
  switch (work) {
    case PipelineWork::kForward:
      return 'F';
    case PipelineWork::kBackward:
      return 'B';
    case PipelineWork::kInputGradient:
      return 'I';
    case PipelineWork::kWeightGradient:
      break;
  }
  return 'W';
}

std::string cell_text(const PipelineSlot& slot) {
  if (slot.empty()) return "";
  if (slot.size() == 1) return to_string(slot[0]);
  std::string text;
  for (const PipelineAction& action : slot) {
    text += (text.empty() ? "(" : ";") + to_string(action);
  }
  return text + ")" + std::string(kOverlap);
}

std::string_view trimmed_cell(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Calls `use` with each part between separators, also with empty ones.
template <class Use>
void for_each_part(std::string_view text, char separator, Use use) {
  for (;;) {
    const std::size_t end = text.find(separator);
    use(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// Reads a number from the beginning of `text` and removes it.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return value;
}

class CellReader {
 public:
  CellReader(std::size_t line, std::size_t cell) : line_(line), cell_(cell) {}

  // Nothing for a cell that only moves tensors.
  std::optional<PipelineSlot> read(std::string_view cell) const {
    if (cell.empty()) return PipelineSlot();
    if (cell.front() == '(') return overlap(cell);
    const auto action = read_action(cell);
    if (!action) return std::nullopt;
    return PipelineSlot{*action};
  }

 private:
  [[noreturn]] void refuse(std::string_view text, const char* expected) const {
    constexpr std::size_t kLongest = 60;
    std::string shown(text.substr(0, kLongest));
    if (text.size() > kLongest) shown += "...";
    throw PlanError("line " + std::to_string(line_) + ", cell " + std::to_string(cell_) + ": \"" +
                    shown + "\" is not " + expected);
  }

  PipelineSlot overlap(std::string_view cell) const {
    constexpr const char* kForm = "two actions that overlap, such as (0F3;3B1)OVERLAP_F_B";
    const std::size_t end = cell.find(')');
    if (end == std::string_view::npos || cell.substr(end + 1) != kOverlap) refuse(cell, kForm);
    PipelineSlot slot;
    for_each_part(cell.substr(1, end - 1), ';', [&](std::string_view part) {
      const auto action = read_action(trimmed_cell(part));
      if (!action) refuse(cell, kForm);
      slot.push_back(*action);
    });
    if (slot.size() != 2) refuse(cell, kForm);
    return slot;
  }

  std::optional<PipelineAction> read_action(std::string_view text) const {
    constexpr const char* kForm =
        "an action; expected a stage, one of F, B, I and W, and a micro-batch, such as 0F3";
    std::string_view rest = text;
    const auto stage = rest.empty() ? std::nullopt : take_number(rest);
    if (!stage || rest.empty()) refuse(text, kForm);
    for (const std::string_view movement : kMovements) {
      if (!rest.starts_with(movement)) continue;
      rest.remove_prefix(movement.size());
      if (!rest.empty() && (!take_number(rest) || !rest.empty())) refuse(text, kForm);
      return std::nullopt;
    }
    constexpr std::string_view kLetters = "FBIW";
    const std::size_t work = kLetters.find(rest.front());
    rest.remove_prefix(1);
    if (work == std::string_view::npos || rest.empty()) refuse(text, kForm);
    const auto micro_batch = take_number(rest);
    if (!micro_batch || !rest.empty()) refuse(text, kForm);
    return PipelineAction{*stage, static_cast<PipelineWork>(work), *micro_batch};
  }

  const std::size_t line_, cell_;
};

}  // namespace

std::string to_string(const PipelineAction& action) {
  return std::to_string(action.stage) + letter_of_work(action.work) +
         std::to_string(action.micro_batch);
}

std::vector<std::int64_t> PipelineSchedule::worker_of_stage() const {
  const auto stage_name = [](std::int64_t stage) { return "stage " + std::to_string(stage); };
  std::vector<std::int64_t> result(
      static_cast<std::size_t>(std::clamp(stages, std::int64_t{0}, plan::kMostForwards)), -1);
  for (std::size_t worker = 0; worker < workers.size(); ++worker) {
    for (const PipelineSlot& slot : workers[worker]) {
      for (const PipelineAction& action : slot) {
        if (action.stage < 0 || action.stage >= std::ssize(result)) {
          throw PlanError(stage_name(action.stage) + " is not one of the schedule's " +
                          std::to_string(stages));
        }
        std::int64_t& owner = result[static_cast<std::size_t>(action.stage)];
        if (owner >= 0 && owner != static_cast<std::int64_t>(worker)) {
          throw PlanError("workers " + std::to_string(owner) + " and " + std::to_string(worker) +
                          " run " + stage_name(action.stage) + "; a stage runs on one worker");
        }
        owner = static_cast<std::int64_t>(worker);
      }
    }
  }
  const auto missing = std::ranges::find(result, -1);
  if (missing != result.end()) {
    throw PlanError("no worker runs " + stage_name(missing - result.begin()) +
                    "; each stage needs one");
  }
  return result;
}

void PipelineSchedule::check() const { plan::in_dependency_order(*this); }

std::string PipelineSchedule::csv() const {
  std::string text;
  for (const std::vector<PipelineSlot>& slots : workers) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (i > 0) text += ',';
      text += cell_text(slots[i]);
    }
    text += '\n';
  }
  return text;
}

PipelineSchedule PipelineSchedule::parse_csv(std::string_view text) {
  PipelineSchedule schedule;
  std::size_t line = 0;
  for_each_part(text, '\n', [&](std::string_view row) {
    ++line;
    if (trimmed_cell(row).empty()) return;
    std::vector<PipelineSlot>& slots = schedule.workers.emplace_back();
    std::size_t cell = 0;
    for_each_part(row, ',', [&](std::string_view part) {
      std::optional<PipelineSlot> slot = CellReader(line, ++cell).read(trimmed_cell(part));
      if (!slot) return;
      for (const PipelineAction& action : *slot) {
        schedule.stages = std::max(schedule.stages, action.stage);
        schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch);
      }
      slots.push_back(std::move(*slot));
    });
  });
  // Numbers above this are refused by check(), and adding one to them may not overflow.
  schedule.stages = std::min(schedule.stages, plan::kMostForwards) + 1;
  schedule.micro_batches = std::min(schedule.micro_batches, plan::kMostForwards) + 1;
  schedule.check();
  return schedule;
}

PipelineSchedule PipelineSchedule::read_csv(const std::filesystem::path& file) {
  const std::string text = plan::read_text_file(file, "the schedule", kMostCsv);
  try {
    return parse_csv(text);
  } catch (const PlanError& error) {
    throw PlanError(file.string() + ": " + error.what());
  }
}

}  // namespace reprise
