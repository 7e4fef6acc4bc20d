// Bytes of masks by the model of chain_walk.h, taken apart: what a stage or a run of stages needs
// beside what the stages before it keep does not depend on what those are.
#include "plan/chain/mask_planner.h"

#include <reprise/error.h>

#include <limits>
#include <string>
#include <utility>

#include "plan/chain/schedule_builder.h"

namespace reprise::plan {
namespace {

constexpr std::int64_t kUnreached = std::numeric_limits<std::int64_t>::max() / 2;
constexpr std::size_t kMostPoints = 2000;

std::int64_t bytes_if(bool counts, Bytes bytes) { return counts ? bytes.count : 0; }

// A mask up to some stage: what it keeps, what it loses, and how it came there.
struct Point {
  std::int64_t bytes = 0;
  double loss = 0;
  std::int64_t from = 0;  // the stage where its last step began
  bool from_run = false;  // whether that was at the end of a run
  std::size_t point = 0;  // among the points there
};

// Those that no other one is better than, by bytes.
using Frontier = std::vector<Point>;

void prune(Frontier& points) {
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.loss < b.loss;
  });
  Frontier kept;
  for (const Point& point : points) {
    if (kept.empty() || point.loss < kept.back().loss) kept.push_back(point);
  }
  if (kept.size() > kMostPoints) {
    // The smallest stays, so that what fits is found, and the cheapest.
    Frontier spread;
    for (std::size_t i = 0; i < kMostPoints; ++i) {
      spread.push_back(kept[i * (kept.size() - 1) / (kMostPoints - 1)]);
    }
    kept = std::move(spread);
  }
  points = std::move(kept);
}

}  // namespace

KeepMask as_run(KeepMask keep) {
  for (std::size_t i = keep.size(); i-- > 0 && !keep[i];) keep[i] = true;
  return keep;
}

Schedule masked_schedule(const Chain& chain, const KeepMask& keep) {
  const KeepMask mask = as_run(keep);
  const std::int64_t stages = std::ssize(chain.stages);
  const auto end_of_run = [&](std::int64_t begin) {
    std::int64_t end = begin;
    while (end < stages && !mask[static_cast<std::size_t>(end)]) ++end;
    return end;
  };
  ScheduleBuilder builder;
  std::vector<StageRange> parts;  // kept stages, and runs, which are longer or not kept
  for (std::int64_t i = 0; i < stages;) {
    if (mask[static_cast<std::size_t>(i)]) {
      builder.keep({i, i + 1});
      parts.push_back({i, i + 1});
      ++i;
    } else {
      const StageRange run{i, end_of_run(i)};
      builder.advance(run);
      parts.push_back(run);
      i = run.end;
    }
  }
  for (std::size_t i = parts.size(); i-- > 0;) {
    if (!mask[static_cast<std::size_t>(parts[i].begin)]) builder.keep(parts[i]);
    builder.backward(parts[i]);
  }
  return builder.take(chain);
}

MaskPlanner::MaskPlanner(const Chain& chain) : chain_(chain), stages_(std::ssize(chain.stages)) {
  chain.check();
  if (stages_ > kMostStages) {
    throw UsageError("a mask of " + std::to_string(stages_) + " stages is too long to plan; it " +
                     "may have at most " + std::to_string(kMostStages) +
                     ": make one stage of several layers");
  }
  const auto count = static_cast<std::size_t>(stages_);
  later_.assign(count, 0);
  for (std::size_t i = count - 1; i-- > 0;) {
    later_[i] = later_[i + 1] + chain_.stages[i + 1].parameter_gradients.count;
    if (i + 2 == count) later_[i] += chain_.stages[i + 1].output.count;
  }
  kept_.resize(count);
  runs_.resize(count * count);
  for (std::int64_t i = 0; i < stages_; ++i) {
    measure_kept(i);
    measure_runs_from(i);
  }
  std::int64_t low = -1;
  std::int64_t high = evaluate(chain_, masked_schedule(chain_, KeepMask(count, true))).peak.count;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  least_ = Bytes(high);
}

// The bytes of a stage's input where that is memory of its own.
std::int64_t MaskPlanner::input_of(std::int64_t stage, bool is_apart) const {
  return stage == 0 ? 0
                    : bytes_if(is_apart, chain_.stages[static_cast<std::size_t>(stage) - 1].output);
}

void MaskPlanner::measure_kept(std::int64_t index) {
  const auto at = static_cast<std::size_t>(index);
  const ChainStage& stage = chain_.stages[at];
  const std::int64_t apart = bytes_if(!stage.saves_output, stage.output);
  const bool is_last = index + 1 == stages_;
  const std::int64_t input_gradient =
      (index > 0 ? chain_.stages[at - 1].output_gradient : chain_.input_gradient).count;
  const std::int64_t made = input_gradient + stage.parameter_gradients.count;
  for (const bool is_apart : {false, true}) {
    const std::int64_t input = input_of(index, is_apart);
    Kept& kept = kept_[at][is_apart ? 1 : 0];
    kept.stays = bytes_if(stage.needs_input, Bytes(input)) + stage.saved.count;
    const std::int64_t in_forward =
        input + stage.saved.count + apart + stage.keep_temporaries.count;
    const std::int64_t in_backward =
        kept.stays + (is_last ? apart : 0) + later_[at] + stage.output_gradient.count;
    kept.peak =
        std::max({in_forward,
                  in_backward + std::max<std::int64_t>(made + stage.backward_temporaries.count, 0),
                  in_backward + made - stage.output_gradient.count - stage.saved.count +
                      bytes_if(is_last && stage.saves_output, stage.output)});
  }
}

void MaskPlanner::measure_runs_from(std::int64_t begin) {
  // While they run again: what is kept so far, and of the last stage its output where that is
  // memory of its own. The peak of running them, and that of their backward.
  std::int64_t kept = 0, output_apart = 0, running = 0, backward = 0;
  std::int64_t first_peak = 0, first_output = 0;
  for (std::int64_t i = begin; i + 1 < stages_; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const ChainStage& stage = chain_.stages[at];
    first_peak =
        std::max(first_peak, first_output + stage.output.count + stage.forward_temporaries.count);
    first_output = stage.output.count;

    const std::int64_t apart = bytes_if(!stage.saves_output, stage.output);
    running = std::max(
        running, kept + output_apart + stage.saved.count + apart + stage.keep_temporaries.count);
    if (stage.needs_input) kept += output_apart;
    kept += stage.saved.count;
    output_apart = apart;

    const std::int64_t made =
        (i > 0 ? chain_.stages[at - 1].output_gradient : chain_.input_gradient).count +
        stage.parameter_gradients.count;
    const std::int64_t live = kept + later_[at] + stage.output_gradient.count;
    backward = std::max({backward,
                         live + std::max<std::int64_t>(made + stage.backward_temporaries.count, 0),
                         live + made - stage.output_gradient.count - stage.saved.count});

    Run& run = runs_[static_cast<std::size_t>(begin * stages_ + i)];
    run.forward_peak = first_peak;
    run.backward_peak = std::max(running + later_[at] + stage.output_gradient.count, backward);
  }
}

bool MaskPlanner::fits(std::int64_t budget) const {
  const auto places = static_cast<std::size_t>(stages_) + 1;
  std::vector<std::int64_t> after_kept(places, kUnreached), after_run(places, kUnreached);
  after_kept[0] = 0;
  for (std::int64_t i = 0; i < stages_; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool is_apart = i > 0 && !chain_.stages[at - 1].saves_output;
    const auto keep = [&](std::int64_t bytes, bool apart) {
      const Kept& kept = kept_[at][apart ? 1 : 0];
      if (bytes + kept.peak > budget) return;
      after_kept[at + 1] = std::min(after_kept[at + 1], bytes + kept.stays);
    };
    keep(after_kept[at], is_apart);
    keep(after_run[at], true);
    const std::int64_t bytes = after_kept[at] + input_of(i, is_apart);
    for (std::int64_t end = i + 1; end < stages_ && bytes <= budget; ++end) {
      if (bytes + run(i, end).peak() > budget) continue;
      std::int64_t& best = after_run[static_cast<std::size_t>(end)];
      best = std::min(best, bytes);
    }
  }
  return after_kept.back() <= budget;
}

std::optional<KeepMask> MaskPlanner::cheapest(Bytes budget, std::span<const double> losses) const {
  const auto places = static_cast<std::size_t>(stages_) + 1;
  std::vector<Frontier> after_kept(places), after_run(places);
  after_kept[0].push_back({});
  for (std::int64_t i = 0; i < stages_; ++i) {
    const auto at = static_cast<std::size_t>(i);
    prune(after_kept[at]);
    prune(after_run[at]);
    const bool is_apart = i > 0 && !chain_.stages[at - 1].saves_output;
    for (const bool from_run : {false, true}) {
      const Frontier& here = from_run ? after_run[at] : after_kept[at];
      const Kept& kept = kept_[at][from_run || is_apart ? 1 : 0];
      for (std::size_t k = 0; k < here.size(); ++k) {
        if (here[k].bytes + kept.peak > budget.count) continue;
        after_kept[at + 1].push_back({here[k].bytes + kept.stays, here[k].loss, i, from_run, k});
      }
    }
    const Frontier& here = after_kept[at];
    double loss = 0;
    for (std::int64_t end = i + 1; end < stages_; ++end) {
      loss += losses[static_cast<std::size_t>(end) - 1];
      for (std::size_t k = 0; k < here.size(); ++k) {
        const std::int64_t bytes = here[k].bytes + input_of(i, is_apart);
        if (bytes + run(i, end).peak() > budget.count) break;
        after_run[static_cast<std::size_t>(end)].push_back(
            {bytes, here[k].loss + loss, i, false, k});
      }
      // Points of all ends wait here until their turn.
      Frontier& waiting = after_run[static_cast<std::size_t>(end)];
      if (waiting.size() > 2 * kMostPoints) prune(waiting);
    }
  }
  prune(after_kept.back());
  if (after_kept.back().empty()) return std::nullopt;
  KeepMask mask(static_cast<std::size_t>(stages_), true);
  std::int64_t place = stages_;
  const Point* point = &after_kept.back().back();
  bool is_run = false;
  while (place > 0) {
    const std::int64_t from = point->from;
    if (is_run) {
      for (std::int64_t i = from; i < place; ++i) mask[static_cast<std::size_t>(i)] = false;
    }
    is_run = point->from_run;
    place = from;
    point = &(is_run ? after_run : after_kept)[static_cast<std::size_t>(from)][point->point];
  }
  return mask;
}

}  // namespace reprise::plan
