// Adding a heuristic: an enumerator, a class here, and a line in the table.
#include "plan/simulate/heuristic.h"

#include <reprise/error.h>

#include <limits>
#include <string>

namespace reprise::plan {

namespace {

double divided(double cost, double by) {
  return by > 0 ? cost / by : std::numeric_limits<double>::infinity();
}

class Dtr final : public EvictionHeuristic {
 public:
  Dtr(std::string_view name, Neighbourhood neighbourhood)
      : name_(name), neighbourhood_(neighbourhood) {}

  double score(const EvictionCandidate& c) const override {
    const double around = neighbourhood_ == Neighbourhood::kNone ? 0 : c.neighbourhood_cost;
    return divided(c.own_cost + around, static_cast<double>(c.bytes) * c.staleness);
  }
  std::string_view name() const override { return name_; }
  Neighbourhood neighbourhood() const override { return neighbourhood_; }

 private:
  std::string_view name_;
  Neighbourhood neighbourhood_;
};

class LeastRecentlyUsed final : public EvictionHeuristic {
 public:
  double score(const EvictionCandidate& c) const override { return divided(1, c.staleness); }
  std::string_view name() const override { return "lru"; }
};

class Largest final : public EvictionHeuristic {
 public:
  double score(const EvictionCandidate& c) const override {
    return divided(1, static_cast<double>(c.bytes));
  }
  std::string_view name() const override { return "largest"; }
  ScoreShape shape() const override { return ScoreShape::kIgnoresStaleness; }
};

// Equal scores: among equals whoever searches draws.
class Random final : public EvictionHeuristic {
 public:
  double score(const EvictionCandidate&) const override { return 1; }
  std::string_view name() const override { return "random"; }
  ScoreShape shape() const override { return ScoreShape::kArbitrary; }
};

using Made = std::unique_ptr<EvictionHeuristic>;

struct Entry {
  Heuristic kind;
  std::string_view name;
  Made (*make)(std::string_view name);
};

template <Neighbourhood kAround>
Made dtr(std::string_view name) {
  return std::make_unique<Dtr>(name, kAround);
}
template <class Simple>
Made simple(std::string_view /*name*/) {
  return std::make_unique<Simple>();
}

constexpr Entry kEntries[] = {
    {Heuristic::kHDtr, "h_dtr", dtr<Neighbourhood::kWalk>},
    {Heuristic::kHEq, "h_eq", dtr<Neighbourhood::kClasses>},
    {Heuristic::kHUp, "h_up", dtr<Neighbourhood::kUpstream>},
    {Heuristic::kHLocal, "h_local", dtr<Neighbourhood::kNone>},
    {Heuristic::kLru, "lru", simple<LeastRecentlyUsed>},
    {Heuristic::kLargest, "largest", simple<Largest>},
    {Heuristic::kRandom, "random", simple<Random>},
};

std::string all_names() {
  std::string all;
  for (const Entry& each : kEntries) all += (all.empty() ? "" : ", ") + std::string(each.name);
  return all;
}

const Entry& entry_of(Heuristic kind) {
  for (const Entry& each : kEntries) {
    if (each.kind == kind) return each;
  }
  throw UsageError("heuristic " + std::to_string(static_cast<int>(kind)) +
                   " does not exist: choose one of " + all_names());
}

}  // namespace

Made make_heuristic(Heuristic kind) {
  const Entry& entry = entry_of(kind);
  return entry.make(entry.name);
}

}  // namespace reprise::plan

namespace reprise {

std::string to_string(Heuristic heuristic) { return std::string(plan::entry_of(heuristic).name); }

Heuristic parse_heuristic(std::string_view name) {
  for (const plan::Entry& each : plan::kEntries) {
    if (each.name == name) return each.kind;
  }
  throw UsageError("\"" + std::string(name) + "\" is not a heuristic: choose one of " +
                   plan::all_names());
}

std::vector<std::string> heuristic_names() {
  std::vector<std::string> names;
  for (const plan::Entry& each : plan::kEntries) names.emplace_back(each.name);
  return names;
}

}  // namespace reprise
