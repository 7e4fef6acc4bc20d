// What hooks on saved tensors cost per saved tensor: none open, one that does nothing, and
// SaveOnCpu.
//
// "None open" is compared with LibTorch as it comes. Once reprise has put its front before
// autograd's engine it stays there, so the stock side is this same program in a process that never
// opens a scope.
#include <reprise/saved_tensor_hooks.h>

#include <stdexcept>

#include "benches.h"
#include "chain.h"

namespace reprise::bench {
namespace {

const at::Tensor& itself(const at::Tensor& tensor) { return tensor; }

Formula per_tensor_beyond(const char* name, const char* base) {
  return [name, base](const Round& round) { return 1e6 * (round[name] - round[base]) / kChain; };
}

std::vector<std::string> stock_command() { return {"/proc/self/exe", "--serve-stock"}; }

void without_a_scope(Session& session) {
  PeerProcess stock(stock_command());
  { SavedTensorHooks puts_the_front_in_place(itself, itself); }
  Race race(session, "hooks", &stock);
  race.add("no-scope", forward_of(sin_chain));
  race.run(Seconds(15));
  // sin itself is in both sides' figures: the bar is what 0 can mean beside the noise of that.
  race.report("no scope, peer: stock", "µs",
              [](const Round& round) { return 1e6 * round["no-scope"] / kChain; },
              {.above_peer_at_most = 0.02});
}

}  // namespace

void hooks(Session& session) {
  without_a_scope(session);

  Race race(session, "hooks", session.python());
  race.add("plain", backward_of(sin_chain));
  race.add("identity", backward_of([](const at::Tensor& x) {
             SavedTensorHooks scope(itself, itself);
             return sin_chain(x);
           }));
  race.add("save_on_cpu", backward_of([](const at::Tensor& x) {
             SaveOnCpu scope;
             return sin_chain(x);
           }));
  race.run(Seconds(20));
  race.report("identity", "µs", per_tensor_beyond("identity", "plain"), {.at_most = 0.35});
  race.report("save_on_cpu", "µs", per_tensor_beyond("save_on_cpu", "plain"), {.at_most = 0.6});
}

void serve_stock() {
  const Step step = forward_of(sin_chain);
  serve(
      "stock", [](const std::string& name) { return name == "hooks/no-scope"; },
      [&](const std::string& name, int calls) {
        if (name != "hooks/no-scope") throw std::invalid_argument("no such step: " + name);
        return time_calls(step, calls);
      });
}

}  // namespace reprise::bench
