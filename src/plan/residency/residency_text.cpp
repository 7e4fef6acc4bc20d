// A plan of residency in words: a line for each choice of a stage, and one for each worker.
#include <reprise/pipeline_residency.h>
#include <reprise/planners.h>

#include <cstdio>

namespace reprise {
namespace {

std::string milliseconds(Seconds seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", seconds.count() * 1e3);
  return text;
}

// "0, 2-5".
std::string runs_of(const std::vector<std::int64_t>& choice_of, std::int64_t choice) {
  std::string text;
  const auto is_chosen = [&](std::size_t i) {
    return i < choice_of.size() && choice_of[i] == choice;
  };
  for (std::size_t begin = 0; begin < choice_of.size(); ++begin) {
    if (!is_chosen(begin)) continue;
    std::size_t last = begin;
    while (is_chosen(last + 1)) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(begin);
    if (last > begin) text += "-" + std::to_string(last);
    begin = last;
  }
  return text;
}

std::string line_of(const PipelineMicroBatch& each) {
  const std::string kept = to_string(each.kept) + " each";
  if (each.recomputed_layers == 0) return "all layers kept, " + kept;
  std::string text = std::to_string(each.recomputed_layers) + " of " + std::to_string(each.layers) +
                     " layers run again, " + kept + ", " +
                     milliseconds(each.recompute + each.recompute_within) + " of recomputation";
  if (each.recompute > Seconds(0) && each.recompute_within > Seconds(0)) {
    text += " (" + milliseconds(each.recompute) + " before the gradient is needed)";
  }
  return text;
}

}  // namespace

std::string PipelineResidency::text() const {
  std::string text;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Stage& stage = stages[s];
    text += "stage " + std::to_string(s) + " on worker " + std::to_string(stage.worker) + "\n";
    for (std::size_t i = 0; i < stage.choices.size(); ++i) {
      text += "  micro-batches " + runs_of(stage.choice_of, static_cast<std::int64_t>(i)) + ": " +
              line_of(stage.choices[i]) + "\n";
    }
  }
  for (std::size_t w = 0; w < peaks.size(); ++w) {
    text += "worker " + std::to_string(w) + ": at most " + to_string(peaks[w]) +
            (bytes[w] == kUnlimited ? ", without a bound" : " of " + to_string(bytes[w])) + "\n";
  }
  char bubble[32];
  std::snprintf(bubble, sizeof bubble, "%.3f", timeline.bubble);
  return text + "step: " + milliseconds(timeline.time) + ", bubble " + bubble + "\n";
}

}  // namespace reprise
