// What it costs an operator to be seen: nothing installed, an interceptor that lets everything
// pass, and selective regions whose policy, a function, recomputes or keeps everything.
//
// The policies are compared with a region without one, whose operators run just as often; keeping
// is compared in forward alone, since the recomputation it saves is what it is for.
#include <reprise/selective.h>

#include "benches.h"
#include "benchmarks/support/fresh_processes.h"
#include "benchmarks/support/pass_through.h"
#include "chain.h"

namespace reprise::bench {
namespace {

// `f` called kChain times without a graph.
template <class F>
Step calls_of(F f) {
  return [f] {
    const at::NoGradGuard no_graph;
    for (int i = 0; i < kChain; ++i) f();
  };
}

template <class F>
void add_operator(Race& race, const std::string& name, F f) {
  race.add(name + ",plain", calls_of(f));
  race.add(name + ",seen", seen(calls_of(f)));
}

void pass_through(Session& session) {
  Race race(session, "interceptor_overhead", session.python());
  const at::Tensor x = randn_on(session.device(), {8, 8});
  const at::Tensor w = randn_on(session.device(), {8, 8});
  add_operator(race, "sin", [=] { return x.sin(); });
  add_operator(race, "add", [=] { return x.add(w); });
  add_operator(race, "view", [=] { return x.view({64}); });
  add_operator(race, "mm", [=] { return x.mm(w); });
  race.run(Seconds(20));
  for (const std::string name : {"sin", "add", "view", "mm"}) {
    const Formula over = [name](const Round& round) {
      return 1e6 * (round[name + ",seen"] - round[name + ",plain"]) / kChain;
    };
    race.report("pass-through, " + name, "µs", over, {.at_most = 0.2});
  }
}

auto region(std::optional<CheckpointPolicy> answer) {
  CheckpointOptions options;
  if (answer) {
    options.context = selective(
        OperatorPolicy([policy = *answer](const SelectiveCheckpointContext&) { return policy; }));
  }
  return [options](const at::Tensor& x) { return checkpoint(options, sin_chain, x); };
}

void policies(Session& session) {
  Race race(session, "interceptor_overhead", session.python());
  race.add("region", backward_of(session.device(), region({})));
  race.add("recompute-all",
           backward_of(session.device(), region(CheckpointPolicy::kPreferRecompute)));
  race.add("region,forward", forward_of(session.device(), region({})));
  race.add("keep-all,forward", forward_of(session.device(), region(CheckpointPolicy::kPreferSave)));
  race.run(Seconds(20));
  const auto beyond = [](const char* name, const char* base) {
    return [=](const Round& round) { return 1e6 * (round[name] - round[base]) / kChain; };
  };
  race.report("policy that recomputes all", "µs", beyond("recompute-all", "region"),
              {.at_most = 0.5});
  race.report("policy that keeps all", "µs", beyond("keep-all,forward", "region,forward"),
              {.at_most = 0.7});
}

}  // namespace

void interceptor_overhead(Session& session) {
  compare_with_stock(session, "interceptor", "interceptor_overhead", "nothing installed");
  pass_through(session);
  policies(session);
}

}  // namespace reprise::bench
