// The planners by name: a new one is a new file and one line here.
#include <reprise/error.h>
#include <reprise/planners.h>

#include <charconv>

namespace reprise {
namespace {

struct Named {
  const char* name;
  Schedule (*plan)(const Chain&, Bytes);
};

constexpr Named kPlanners[] = {
    {"keep_all", planners::keep_all},
    {"every_stage", planners::every_stage},
    {"sqrt", planners::sqrt},
    {"revolve", planners::revolve},
    {"rotor", [](const Chain& chain, Bytes budget) { return planners::rotor(chain, budget); }},
};
constexpr std::string_view kUniform = "uniform:";

}  // namespace

std::vector<std::string> planner_names() {
  std::vector<std::string> names;
  for (const Named& planner : kPlanners) names.emplace_back(planner.name);
  names.emplace_back("uniform:K");
  return names;
}

ChainPlanner planner_named(const std::string& text) {
  for (const Named& planner : kPlanners) {
    if (planner.name == text) return planner.plan;
  }
  if (text.starts_with(kUniform)) {
    std::int64_t segments = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + kUniform.size(), end, segments);
    if (error == std::errc() && rest == end && segments > 0) {
      return [segments](const Chain& chain, Bytes budget) {
        return planners::uniform(chain, segments, budget);
      };
    }
  }
  std::string choices;
  for (const std::string& name : planner_names()) choices += (choices.empty() ? "" : ", ") + name;
  throw UsageError("\"" + text + "\" is not a planner: choose one of " + choices +
                   " (K segments, such as uniform:4)");
}

}  // namespace reprise
