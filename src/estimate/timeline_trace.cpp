// A timeline as simulators and planners read it. As in recorded traces, a write in place makes a
// new value beside the old one, and one to memory that was there before leaves that as it is. A
// kernel's workspace is one more result, let go at once.
#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "estimate/account.h"
#include "plan/trace/step_trace_access.h"
#include "plan/trace/trace_builder.h"

namespace reprise::estimate {

namespace {

class TraceOfTimeline {
 public:
  TraceOfTimeline(const Timeline& timeline, const std::vector<std::int64_t>& sizes)
      : timeline_(timeline), sizes_(sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) names_.push_back("x" + std::to_string(i));
  }

  plan::Trace make(std::int64_t optimizer_state) && {
    if (optimizer_state > 0) builder_.constant("optimizer", optimizer_state);
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!is_made(static_cast<Timeline::Number>(i))) builder_.constant(names_[i], sizes_[i]);
    }
    using What = Timeline::Event::What;
    for (const Timeline::Event& event : timeline_.events()) {
      if (event.what == What::kDeath) {
        builder_.release(names_[static_cast<std::size_t>(event.subject)]);
      } else if (event.what == What::kCall) {
        add(timeline_.calls()[static_cast<std::size_t>(event.subject)]);
      }
    }
    return std::move(builder_).finish();
  }

 private:
  bool is_made(Timeline::Number number) const {
    const Timeline::Role role = timeline_.memories()[static_cast<std::size_t>(number)].role;
    return role == Timeline::Role::kMade || role == Timeline::Role::kGradient;
  }

  // Views and questions make nothing, write nothing and take no time.
  static bool is_idle(const Timeline::Call& call) {
    return call.results.empty() && call.written.empty() && call.seconds == 0;
  }

  void add(const Timeline::Call& call) {
    if (is_idle(call)) return;
    std::vector<std::string_view> arguments;
    for (const Timeline::Number each : call.arguments) {
      arguments.emplace_back(names_[static_cast<std::size_t>(each)]);
    }
    std::vector<std::int64_t> written;
    for (const std::size_t each : call.written) {
      if (is_made(call.arguments[each])) written.push_back(static_cast<std::int64_t>(each));
    }
    std::vector<plan::TraceBuilder::Result> results;
    for (const Timeline::Number each : call.results) {
      results.push_back({.name = names_[static_cast<std::size_t>(each)],
                         .bytes = sizes_[static_cast<std::size_t>(each)]});
    }
    const std::string workspace = "w" + std::to_string(workspaces_);
    if (call.workspace > 0) {
      results.push_back({.name = workspace, .bytes = call.workspace});
      ++workspaces_;
    }
    const auto nanoseconds = static_cast<std::int64_t>(std::llround(call.seconds * 1e9));
    // One that makes something and writes is two, of which the first takes the time.
    const bool is_call = written.empty() || !results.empty();
    if (is_call) builder_.call(call.name, arguments, results, nanoseconds);
    if (!written.empty()) builder_.mutate(call.name, arguments, written, is_call ? 0 : nanoseconds);
    if (call.workspace > 0) builder_.release(workspace);
  }

  const Timeline& timeline_;
  const std::vector<std::int64_t>& sizes_;
  std::vector<std::string> names_;
  plan::TraceBuilder builder_;
  std::int64_t workspaces_ = 0;
};

}  // namespace

StepTrace trace_of_timeline(const Timeline& timeline, const std::vector<std::int64_t>& sizes,
                            std::int64_t optimizer_state) {
  return detail::StepTraceAccess::step_trace(
      TraceOfTimeline(timeline, sizes).make(optimizer_state));
}

}  // namespace reprise::estimate
