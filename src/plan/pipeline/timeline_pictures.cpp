// Timelines of a pipeline as text, as SVG and as a trace for Chrome: a row for each worker, a cell
// for each event.
#include <reprise/error.h>
#include <reprise/pipeline_schedule.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "plan/io/svg.h"

namespace reprise {
namespace {

using plan::svg_attribute;

constexpr std::int64_t kMostColumns = 10'000;
constexpr std::int64_t kMostDrawnEvents = 1'000'000;

struct EventLook {
  char letter;
  const char* category;
  const char* colour;
};

EventLook look_of(const PipelineEvent& event) {
  if (event.recompute) return {'R', "recompute", "url(#hatched)"};
  switch (event.action.work) {
    case PipelineWork::kForward:
      return {'F', "forward", "#7fb2d9"};
    case PipelineWork::kBackward:
      return {'B', "backward", "#e07b7b"};
    case PipelineWork::kInputGradient:
      return {'I', "input gradient", "#f0b27a"};
    case PipelineWork::kWeightGradient:
      break;
  }
  return {'W', "weight gradient", "#8fca8f"};
}

bool runs_several_stages(const PipelineTimeline::Worker& worker) {
  const auto is_other = [&](const PipelineEvent& event) {
    return event.action.stage != worker.events.front().action.stage;
  };
  return std::ranges::any_of(worker.events, is_other);
}

std::string event_label(const PipelineEvent& event, bool with_stage) {
  return (with_stage ? std::to_string(event.action.stage) : "") + look_of(event).letter +
         std::to_string(event.action.micro_batch);
}

std::string worker_label(std::size_t worker, std::size_t workers) {
  const std::string number = std::to_string(worker);
  return "worker " + std::string(std::to_string(workers - 1).size() - number.size(), ' ') + number;
}

// A moment as a share of the row. Moments outside of the step are at its ends.
double share_of_step(const PipelineTimeline& timeline, Seconds at) {
  if (!(timeline.time > Seconds::zero())) return 0;
  return std::clamp(at / timeline.time, 0.0, 1.0);
}

std::string short_number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string timeline_title(const PipelineTimeline& timeline) {
  return (timeline.name.empty() ? "pipeline" : timeline.name) + ": " +
         short_number("%.4g s", timeline.time.count()) + ", " +
         short_number("%.1f %% idle", 100 * timeline.bubble);
}

}  // namespace

std::string PipelineTimeline::text(std::int64_t columns) const {
  if (columns < 1 || columns > kMostColumns) {
    throw UsageError("text: columns is " + std::to_string(columns) + "; it must be between 1 and " +
                     std::to_string(kMostColumns));
  }
  const auto column_of = [&](Seconds at) {
    return static_cast<std::size_t>(
        std::llround(share_of_step(*this, at) * static_cast<double>(columns)));
  };
  std::string result;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const bool with_stage = runs_several_stages(workers[i]);
    std::string row(static_cast<std::size_t>(columns), '.');
    for (const PipelineEvent& event : workers[i].events) {
      const std::size_t begin = column_of(event.begin), end = column_of(event.end);
      if (end <= begin) continue;
      std::string cell = event_label(event, with_stage);
      if (cell.size() > end - begin) cell = look_of(event).letter;
      cell.resize(end - begin, '-');
      row.replace(begin, end - begin, cell);
    }
    result += worker_label(i, workers.size()) + " " + row + "\n";
  }
  return result;
}

std::string PipelineTimeline::svg() const {
  constexpr double kLeft = 150, kTop = 30, kRow = 22, kBox = 18, kWide = 1200, kGap = 10;
  constexpr double kLetter = 6;  // the width of a character of a label
  std::int64_t count = 0;
  for (const Worker& worker : workers) count += std::ssize(worker.events);
  if (count > kMostDrawnEvents) {
    throw UsageError("svg: " + std::to_string(count) + " events are too many to draw; at most " +
                     std::to_string(kMostDrawnEvents) + " fit: use chrome_trace()");
  }
  const double height = kTop + kRow * static_cast<double>(workers.size()) + kGap;
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\"" + svg_attribute("width", kLeft + kWide + kGap) +
      svg_attribute("height", height) +
      " font-family=\"sans-serif\" font-size=\"10\">\n"
      "<defs><pattern id=\"hatched\" patternUnits=\"userSpaceOnUse\" width=\"5\" height=\"5\" "
      "patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"#cfe2f0\"/>"
      "<rect width=\"2\" height=\"5\" fill=\"#7fb2d9\"/></pattern></defs>\n";
  const auto add_text = [&svg](double x, double y, const std::string& text) {
    svg += "<text" + svg_attribute("x", x) + svg_attribute("y", y) + ">" + plan::svg_escaped(text) +
           "</text>\n";
  };
  add_text(kGap, 18, timeline_title(*this));
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const Worker& worker = workers[i];
    const bool with_stage = runs_several_stages(worker);
    const double y = kTop + kRow * static_cast<double>(i);
    std::string label = worker_label(i, workers.size());
    if (worker.peak > Bytes(0)) label += ", " + to_string(worker.peak);
    add_text(kGap, y + 13, label);
    svg += "<rect" + svg_attribute("x", kLeft) + svg_attribute("y", y) +
           svg_attribute("width", kWide) + svg_attribute("height", kBox) + " fill=\"#eeeeee\"/>\n";
    for (const PipelineEvent& event : worker.events) {
      const double begin = kLeft + kWide * share_of_step(*this, event.begin);
      const double width = kLeft + kWide * share_of_step(*this, event.end) - begin;
      const EventLook look = look_of(event);
      svg += "<rect" + svg_attribute("x", begin) + svg_attribute("y", y) +
             svg_attribute("width", width) + svg_attribute("height", kBox) + " fill=\"" +
             look.colour + "\" stroke=\"#ffffff\" stroke-width=\"0.5\"><title>" +
             to_string(event.action) + ", " + look.category + "</title></rect>\n";
      const std::string text = event_label(event, with_stage);
      if (kLetter * static_cast<double>(text.size()) + 2 <= width) {
        add_text(begin + 2, y + 13, text);
      }
    }
  }
  return svg + "</svg>\n";
}

std::string PipelineTimeline::chrome_trace() const {
  using Json = nlohmann::ordered_json;
  constexpr int kProcess = 1;
  constexpr double kMicroseconds = 1e6;
  std::string result = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  const auto add = [&result](const Json& event, const char* before = ",\n") {
    // Names may be any bytes.
    result += before + event.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  add({{"ph", "M"},
       {"pid", kProcess},
       {"name", "process_name"},
       {"args", {{"name", timeline_title(*this)}}}},
      "");
  for (std::size_t i = 0; i < workers.size(); ++i) {
    add({{"ph", "M"},
         {"pid", kProcess},
         {"tid", i + 1},
         {"name", "thread_name"},
         {"args", {{"name", worker_label(i, workers.size())}}}});
    for (const PipelineEvent& event : workers[i].events) {
      const PipelineAction& action = event.action;
      add({{"ph", "X"},
           {"pid", kProcess},
           {"tid", i + 1},
           {"name", (event.recompute ? "recompute " : "") + to_string(action)},
           {"cat", look_of(event).category},
           {"ts", kMicroseconds * event.begin.count()},
           {"dur", kMicroseconds * (event.end - event.begin).count()},
           {"args", {{"stage", action.stage}, {"micro_batch", action.micro_batch}}}});
    }
  }
  return result + "\n]}\n";
}

}  // namespace reprise
