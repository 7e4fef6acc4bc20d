// Adding a heuristic: a class here and a line in the table.
#include "plan/simulate/heuristic.h"

#include <reprise/error.h>

#include <functional>
#include <limits>
#include <utility>

namespace reprise::plan {

namespace {

double divided(double cost, double by) {
  return by > 0 ? cost / by : std::numeric_limits<double>::infinity();
}

class Dtr final : public Heuristic {
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

class LeastRecentlyUsed final : public Heuristic {
 public:
  double score(const EvictionCandidate& c) const override { return divided(1, c.staleness); }
  std::string_view name() const override { return "lru"; }
};

class Largest final : public Heuristic {
 public:
  double score(const EvictionCandidate& c) const override {
    return divided(1, static_cast<double>(c.bytes));
  }
  std::string_view name() const override { return "largest"; }
  ScoreShape shape() const override { return ScoreShape::kIgnoresStaleness; }
};

// Equal scores: among equals whoever searches draws.
class Random final : public Heuristic {
 public:
  double score(const EvictionCandidate&) const override { return 1; }
  std::string_view name() const override { return "random"; }
  ScoreShape shape() const override { return ScoreShape::kArbitrary; }
};

using Maker = std::function<std::unique_ptr<Heuristic>()>;

const std::vector<std::pair<std::string, Maker>>& makers() {
  static const std::vector<std::pair<std::string, Maker>> all = {
      {"h_dtr", [] { return std::make_unique<Dtr>("h_dtr", Neighbourhood::kWalk); }},
      {"h_eq", [] { return std::make_unique<Dtr>("h_eq", Neighbourhood::kClasses); }},
      {"h_up", [] { return std::make_unique<Dtr>("h_up", Neighbourhood::kUpstream); }},
      {"h_local", [] { return std::make_unique<Dtr>("h_local", Neighbourhood::kNone); }},
      {"lru", [] { return std::make_unique<LeastRecentlyUsed>(); }},
      {"largest", [] { return std::make_unique<Largest>(); }},
      {"random", [] { return std::make_unique<Random>(); }},
  };
  return all;
}

}  // namespace

const std::vector<std::string>& heuristic_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, make] : makers()) all.push_back(name);
    return all;
  }();
  return names;
}

std::unique_ptr<Heuristic> heuristic_named(std::string_view name) {
  std::string known;
  for (const auto& [each, make] : makers()) {
    if (each == name) return make();
    known += (known.empty() ? "" : ", ") + each;
  }
  throw UsageError("\"" + std::string(name) + "\" is not a heuristic: choose one of " + known);
}

}  // namespace reprise::plan
