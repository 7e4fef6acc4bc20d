// Schedules as pictures: one row a stage, one column an operation.
#include <reprise/chain.h>
#include <reprise/error.h>

#include <algorithm>

#include "plan/chain/chain_walk.h"
#include "plan/io/svg.h"

namespace reprise {
namespace {

using plan::svg_attribute;
using Kind = ScheduleOp::Kind;

constexpr std::size_t kMostCells = 4'000'000;

char letter_of(Kind kind) {
  switch (kind) {
    case Kind::kForwardKeep:
      return 'K';
    case Kind::kForwardCheckpoint:
      return 'c';
    case Kind::kForwardDrop:
      return 'd';
    case Kind::kBackward:
      return 'B';
    case Kind::kOffload:
      return 'o';
    case Kind::kLoad:
      return 'l';
  }
  return ' ';
}

char letter_of(const plan::ChainWalk& walk, std::size_t stage) {
  if (walk.is_kept(stage)) return '=';
  if (walk.is_offloaded(stage)) return '.';
  return walk.has_output(stage) ? '-' : ' ';
}

struct Column {
  std::string cells;  // of each stage, what is done or held
  Bytes live;         // after the operation
  Bytes peak;         // so far
};

std::vector<Column> columns_of(const Chain& chain, const Schedule& schedule,
                               const TransferRate& store) {
  chain.check();
  if (schedule.ops.size() > kMostCells / chain.stages.size()) {
    throw UsageError("picture: " + std::to_string(schedule.ops.size()) + " operations of " +
                     std::to_string(chain.stages.size()) +
                     " stages are too many to draw: operations times stages may be at most " +
                     std::to_string(kMostCells) + "; draw a shorter chain");
  }
  plan::ChainWalk walk(chain, store);
  std::vector<Column> columns;
  for (const ScheduleOp& op : schedule.ops) {
    walk.apply(op);
    Column column{std::string(chain.stages.size(), ' '), walk.live(), walk.cost().peak};
    for (std::size_t i = 0; i < chain.stages.size(); ++i) {
      column.cells[i] = letter_of(walk, i);
    }
    column.cells[static_cast<std::size_t>(op.stage)] = letter_of(op.kind);
    columns.push_back(std::move(column));
  }
  walk.finish();
  return columns;
}

std::string label_of(const Chain& chain, std::size_t stage) {
  std::string label = plan::stage_label(chain.stages[stage]);
  return label.empty() ? std::to_string(stage) : label;
}

const char* colour_of(char cell) {
  switch (cell) {
    case 'K':
      return "#1f77b4";
    case 'c':
    case 'd':
      return "#7fb2d9";
    case 'B':
      return "#d62728";
    case 'o':
    case 'l':
      return "#9467bd";
    case '=':
      return "#c6d9ea";
    case '-':
      return "#e4eef6";
    case '.':
      return "#e3d9ee";
    default:
      return nullptr;
  }
}

}  // namespace

std::string picture(const Chain& chain, const Schedule& schedule, const TransferRate& store) {
  const std::vector<Column> columns = columns_of(chain, schedule, store);
  std::size_t width = 0;
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    width = std::max(width, label_of(chain, i).size());
  }
  std::string text;
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    std::string line = label_of(chain, i);
    line.resize(width + 1, ' ');
    for (const Column& column : columns) line += column.cells[i];
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string picture_svg(const Chain& chain, const Schedule& schedule, const TransferRate& store) {
  constexpr double kCell = 10, kLeft = 120, kCurve = 80, kGap = 10;
  const std::vector<Column> columns = columns_of(chain, schedule, store);
  const double width = kLeft + kCell * static_cast<double>(columns.size()) + kGap;
  const double top = kCurve + 2 * kGap;
  const double height = top + kCell * static_cast<double>(chain.stages.size()) + kGap;
  const Bytes peak = columns.back().peak;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\"" + svg_attribute("width", width) +
                    svg_attribute("height", height) +
                    " font-family=\"sans-serif\" font-size=\"9\">\n<text" +
                    svg_attribute("x", kGap) + svg_attribute("y", kGap + 8) + ">peak " +
                    to_string(peak) + "</text>\n";
  const auto rectangle = [&svg](double x, double y, double w, double h, const char* colour) {
    svg += "<rect" + svg_attribute("x", x) + svg_attribute("y", y) + svg_attribute("width", w) +
           svg_attribute("height", h) + " fill=\"" + colour + "\"/>\n";
  };
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    svg += "<text" + svg_attribute("x", kGap) +
           svg_attribute("y", top + kCell * static_cast<double>(i + 1) - 2) + ">" +
           plan::svg_escaped(label_of(chain, i)) + "</text>\n";
  }
  for (std::size_t k = 0; k < columns.size(); ++k) {
    const double x = kLeft + kCell * static_cast<double>(k);
    const double share = peak.count == 0 ? 0
                                         : static_cast<double>(columns[k].live.count) /
                                               static_cast<double>(peak.count);
    rectangle(x, kGap + kCurve * (1 - share), kCell, kCurve * share, "#bbbbbb");
    for (std::size_t i = 0; i < chain.stages.size(); ++i) {
      const char* const colour = colour_of(columns[k].cells[i]);
      if (colour == nullptr) continue;
      rectangle(x, top + kCell * static_cast<double>(i), kCell - 1, kCell - 1, colour);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace reprise
