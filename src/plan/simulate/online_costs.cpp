// What is dropped around a value, as the heuristic of a running step counts it
// (src/tape/evictor.cpp).
#include <algorithm>
#include <utility>

#include "plan/simulate/online_run.h"

namespace reprise::plan {
namespace {

using Index = OnlineStep::Index;

}  // namespace

Index OnlineRun::index_of(const EvictionEntry& entry) const {
  return static_cast<Index>(static_cast<const Value*>(&entry) - values_.data());
}

double OnlineRun::neighbourhood(Index index) {
  if (values_[index].is_packable) return 0;
  double around = 0;
  switch (neighbourhood_) {
    case Neighbourhood::kNone:
      return 0;
    case Neighbourhood::kClasses:
      around = classes_around(index);
      break;
    case Neighbourhood::kUpstream:
      around = upstream(index);
      break;
    case Neighbourhood::kWalk:
      around = upstream(index) + downstream(index);
      break;
  }
  const double store = step_.values[index].store_seconds;
  return store < 0 ? around : std::clamp(store - values_[index].own_cost, 0.0, around);
}

double OnlineRun::classes_around(Index index) {
  seen_.clear();
  double cost = 0;
  const auto add = [&](Index other) {
    if (other == kNone || values_[other].node == CostClasses::kNone) return;
    const CostClasses::Node root = classes_.find(values_[other].node);
    if (std::ranges::count(seen_, root) != 0) return;
    seen_.push_back(root);
    cost += classes_.cost(root);
  };
  for (const OnlineStep::Input& input : step_.inputs_of(values_[index].producer)) add(input.value);
  for (const Index reader : values_[index].readers) {
    for (const OnlineStep::Output& output : step_.outputs_of(reader)) add(output.value);
  }
  return cost;
}

double OnlineRun::upstream(Index index) {
  double cost = 0;
  met_.assign(1, values_[index].producer);
  producers_[met_.front()].met = ++walks_;
  for (std::size_t i = 0; i < met_.size() && i < kMostWalked; ++i) {
    for (const OnlineStep::Input& input : step_.inputs_of(met_[i])) {
      if (input.value == kNone || values_[input.value].has_bytes) continue;
      const Value& value = values_[input.value];
      if (value.is_parked) {
        cost += step_.values[input.value].store_seconds;
        continue;
      }
      if (value.has_bits) {
        cost += step_.values[input.value].pack_seconds;
        continue;
      }
      if (value.producer == kNone) continue;
      Producer& maker = producers_[value.producer];
      if (std::exchange(maker.met, walks_) == walks_) continue;
      cost += maker.again;
      met_.push_back(value.producer);
    }
  }
  return cost;
}

double OnlineRun::downstream(Index index) {
  double cost = 0;
  ++walks_;
  met_.clear();
  const auto is_gone = [this](Index reader, const OnlineStep::Output& output) {
    return values_[output.value].producer == reader && is_lost(output.value);
  };
  const auto visit = [&](Index from) {
    for (const Index reader : values_[from].readers) {
      const auto outputs = step_.outputs_of(reader);
      if (std::ranges::none_of(outputs, [&](const auto& each) { return is_gone(reader, each); })) {
        continue;
      }
      if (std::exchange(producers_[reader].met, walks_) == walks_) continue;
      cost += producers_[reader].again;
      met_.push_back(reader);
    }
  };
  visit(index);
  for (std::size_t i = 0; i < met_.size() && i < kMostWalked; ++i) {
    for (const OnlineStep::Output& output : step_.outputs_of(met_[i])) {
      if (values_[output.value].producer == met_[i] && !values_[output.value].has_bytes) {
        visit(output.value);
      }
    }
  }
  return cost;
}

void OnlineRun::note_dropped(Index index) {
  Value& value = values_[index];
  if (value.has_bits || neighbourhood_ != Neighbourhood::kClasses || value.producer == kNone ||
      value.node != CostClasses::kNone)
    return;
  value.node = classes_.add(producers_[value.producer].again);
  const auto join = [&](Index other) {
    if (other == kNone || values_[other].node == CostClasses::kNone) return;
    classes_.merge(values_[index].node, values_[other].node);
  };
  for (const OnlineStep::Input& input : step_.inputs_of(value.producer)) join(input.value);
  for (const Index reader : value.readers) {
    for (const OnlineStep::Output& output : step_.outputs_of(reader)) join(output.value);
  }
}

void OnlineRun::note_restored(Index index) {
  Value& value = values_[index];
  if (value.node == CostClasses::kNone) return;
  classes_.remove(value.node, value.producer != kNone ? producers_[value.producer].again : 0);
  value.node = CostClasses::kNone;
}

}  // namespace reprise::plan
