#include "apps/cli/experiment/findings_pictures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/report.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <utility>

#include "apps/cli/experiment/findings_figures.h"

namespace reprise::app {

namespace {

using MethodRuns = std::vector<const RunFile*>;

// For a file's name on any system, and in a link.
std::string file_name(std::string name) {
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  }
  return name;
}

// Of runs without a comma in their method's name.
std::vector<std::string> plain_methods(const Runs& runs, const std::string& model) {
  std::vector<std::string> methods = runs.methods(model);
  std::erase_if(methods, [](const std::string& name) { return name.find(',') != name.npos; });
  return methods;
}

std::optional<Interval> scaled_range(const std::optional<Interval>& range, double factor) {
  if (!range) return std::nullopt;
  return Interval{factor * range->low, factor * range->high};
}

void add_frontier(std::vector<Picture>& pictures, const Runs& runs, const std::string& model) {
  LineChart chart{.title = model + ": memory and time of a step",
                  .subtitle = "means over seeds, 95 % intervals",
                  .x_label = "peak above what is live before the step (MB)",
                  .y_label = "time of a step, × none"};
  const MethodRuns none = runs.of(model, "none");
  for (const std::string& method : plain_methods(runs, model)) {
    const MethodRuns ours = runs.of(model, method);
    const OverSeeds bytes = over_seeds(ours, peak_bytes_of);
    const OverSeeds ratio = ratio_of(paired(ours, none, milliseconds_of));
    if (std::isnan(bytes.mean) || std::isnan(ratio.mean)) continue;
    chart.series.push_back(
        {method,
         {{1e-6 * bytes.mean, ratio.mean, scaled_range(bytes.interval, 1e-6), ratio.interval}},
         false});
  }
  if (chart.series.empty()) return;
  pictures.push_back(
      {file_name(model) + "-frontier.svg", "memory and time of a step", svg_of(chart)});
}

// The shortest of the runs, for means need all of them.
std::size_t common_steps(const MethodRuns& runs) {
  return runs.empty() ? 0 : std::ranges::min(runs, {}, [](const RunFile* run) {
                              return run->steps.size();
                            })->steps.size();
}

std::vector<double> mean_losses(const MethodRuns& runs) {
  std::vector<double> means;
  for (std::size_t i = 0; i < common_steps(runs); ++i) {
    double sum = 0;
    for (const RunFile* run : runs) sum += run->steps[i].loss;
    means.push_back(sum / static_cast<double>(runs.size()));
  }
  return means;
}

bool are_equal(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(
      a, b, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

// Methods with the same losses are one line.
void add_losses(std::vector<Picture>& pictures, const Runs& runs, const std::string& model) {
  struct Curve {
    std::vector<std::string> methods;
    std::vector<double> losses;
  };
  std::vector<Curve> curves;
  for (const std::string& method : plain_methods(runs, model)) {
    std::vector<double> losses = mean_losses(runs.of(model, method));
    if (!std::ranges::any_of(losses, [](double loss) { return std::isfinite(loss); })) continue;
    const auto same = std::ranges::find_if(
        curves, [&](const Curve& curve) { return are_equal(curve.losses, losses); });
    if (same == curves.end()) {
      curves.push_back({{method}, std::move(losses)});
    } else {
      same->methods.push_back(method);
    }
  }
  if (curves.empty()) return;
  LineChart chart{.title = model + ": loss",
                  .subtitle = "means over seeds",
                  .x_label = "step",
                  .y_label = "training loss"};
  std::string text = "training loss";
  for (const Curve& curve : curves) {
    LineChart::Series& series = chart.series.emplace_back();
    const std::size_t others = curve.methods.size() - 1;
    series.name = curve.methods[0];
    if (others > 0) {
      series.name += fmt::format(" and {} with the same", others);
      text += fmt::format("; the same for {}", fmt::join(curve.methods, ", "));
    }
    for (std::size_t i = 0; i < curve.losses.size(); ++i) {
      series.points.push_back({static_cast<double>(i + 1), curve.losses[i]});
    }
  }
  pictures.push_back({file_name(model) + "-loss.svg", text, svg_of(chart)});
}

// values[layer][step]: the mean over seeds of what `figure` says of a layer in a step; NaN where no
// seed has it.
template <class F>
std::vector<std::vector<double>> by_layer(const MethodRuns& runs, F&& figure) {
  std::vector<std::vector<double>> values(runs[0]->layers.size());
  for (std::size_t layer = 0; layer < values.size(); ++layer) {
    for (std::size_t i = 0; i < common_steps(runs); ++i) {
      double sum = 0, count = 0;
      for (const RunFile* run : runs) {
        const double value = figure(run->steps[i], layer);
        if (std::isnan(value)) continue;
        sum += value;
        ++count;
      }
      values[layer].push_back(count > 0 ? sum / count : kNoFigure);
    }
  }
  return values;
}

// Those with a mask in every step and the layers of the first.
MethodRuns masked_runs(const Runs& runs, const std::string& model, const std::string& method) {
  MethodRuns found = runs.of(model, method);
  std::erase_if(found, [&](const RunFile* run) {
    const auto is_maskless = [](const StepLine& step) { return step.mask.empty(); };
    return run->steps.empty() || std::ranges::any_of(run->steps, is_maskless);
  });
  if (!found.empty()) {
    const std::vector<std::string>& layers = found[0]->layers;
    std::erase_if(found, [&](const RunFile* run) { return run->layers != layers; });
  }
  return found;
}

void add_influence(std::vector<Picture>& pictures, const std::string& model,
                   const std::string& method, const MethodRuns& runs) {
  HeatMap map{.title = model + ": influence of layers",
              .subtitle = method + ", means over seeds",
              .x_label = "step",
              .y_label = "layer",
              .value_label = "score",
              .rows = runs[0]->layers,
              .values = by_layer(runs, [](const StepLine& step, std::size_t layer) {
                return step.scores[layer];
              })};
  map.log_color = true;
  const auto has_score = [](const std::vector<double>& row) {
    return std::ranges::any_of(row, [](double score) { return score > 0 && std::isfinite(score); });
  };
  if (!std::ranges::any_of(map.values, has_score)) return;
  pictures.push_back({file_name(model) + "-influence.svg",
                      fmt::format("influence of layers (`{}`)", method), svg_of(map)});
}

void add_mask(std::vector<Picture>& pictures, const std::string& model, const std::string& method,
              const MethodRuns& runs) {
  HeatMap map{.title = model + ": what is kept",
              .subtitle = method,
              .x_label = "step",
              .y_label = "layer",
              .value_label = "seeds that keep it",
              .rows = runs[0]->layers,
              .values = by_layer(runs, [](const StepLine& step, std::size_t layer) {
                return step.mask[layer] == '1' ? 1.0 : 0.0;
              })};
  map.least = 0;
  map.greatest = 1;
  if (map.rows.empty()) return;
  pictures.push_back({fmt::format("{}-{}-mask.svg", file_name(model), file_name(method)),
                      fmt::format("what is kept (`{}`)", method), svg_of(map)});
}

}  // namespace

std::vector<Picture> pictures_of(const Runs& runs, const std::string& model) {
  std::vector<Picture> pictures;
  add_frontier(pictures, runs, model);
  add_losses(pictures, runs, model);
  bool has_influence = false;
  for (const std::string& method : plain_methods(runs, model)) {
    const MethodRuns masked = masked_runs(runs, model, method);
    if (masked.empty()) continue;
    // Gradients are the same under all exact methods, and so is influence.
    // Of `random`, whose averages are no influence, there is only the mask.
    if (method != "random" && !std::exchange(has_influence, true)) {
      add_influence(pictures, model, method, masked);
    }
    add_mask(pictures, model, method, masked);
  }
  return pictures;
}

}  // namespace reprise::app
