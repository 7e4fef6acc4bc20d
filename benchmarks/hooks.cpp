// What hooks on saved tensors cost per saved tensor: none open, one that does nothing, and
// SaveOnCpu.
//
// "None open" is compared with LibTorch as it comes. Once reprise has put its front before
// autograd's engine it stays there, so the stock side is this same program in a process that never
// opens a scope. Where a process happens to put its heap and its libraries moves the figure more
// than what is looked for does, so several fresh processes of each side take part.
#include <reprise/saved_tensor_hooks.h>

#include <stdexcept>

#include "benches.h"
#include "chain.h"
#include "core/statistics.h"

namespace reprise::bench {
namespace {

constexpr const char* kNoScope = "hooks/no-scope";

const at::Tensor& itself(const at::Tensor& tensor) { return tensor; }

Formula per_tensor_beyond(const char* name, const char* base) {
  return [name, base](const Round& round) { return 1e6 * (round[name] - round[base]) / kChain; };
}

constexpr const char* kStock = "stock";
constexpr const char* kFront = "front";

// Microseconds a saved tensor takes in one fresh process of each side, forward alone.
struct Pair {
  double stock;
  double front;
};

Pair time_pair(Seconds limit) {
  PeerProcess stock({"/proc/self/exe", "--serve-hooks", kStock});
  PeerProcess front({"/proc/self/exe", "--serve-hooks", kFront});
  std::vector<double> stock_times;
  std::vector<double> front_times;
  const auto time = [](PeerProcess& process) { return 1e6 * process.time(kNoScope, 25) / kChain; };
  for (const Stopwatch watch; stock_times.size() < 5 || watch.elapsed() < limit;) {
    const bool stock_first = stock_times.size() % 2 == 0;
    if (stock_first) stock_times.push_back(time(stock));
    front_times.push_back(time(front));
    if (!stock_first) stock_times.push_back(time(stock));
  }
  return {median(stock_times), median(front_times)};
}

void without_a_scope(Session& session) {
  std::vector<double> ours;
  std::vector<double> stock;
  const int pairs = session.quick() ? 2 : 15;
  for (int i = 0; i < pairs; ++i) {
    const Pair pair = time_pair(Seconds(session.quick() ? 0.1 : 1));
    ours.push_back(pair.front);
    stock.push_back(pair.stock);
  }
  // sin itself is in both sides' figures: the bar is what 0 can mean beside the noise of that.
  session.report(make_figure("hooks", "no scope, peer: stock", "µs", ours, stock,
                             {.above_peer_at_most = 0.02}));
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

void serve_hooks(const std::string& side) {
  if (side != kFront && side != kStock) throw std::invalid_argument("no such side: " + side);
  if (side == kFront) SavedTensorHooks puts_the_front_in_place(itself, itself);
  const Step step = forward_of(sin_chain);
  serve(
      side, [](const std::string& name) { return name == kNoScope; },
      [&](const std::string& name, int calls) {
        if (name != kNoScope) throw std::invalid_argument("no such step: " + name);
        return time_calls(step, calls);
      });
}

}  // namespace reprise::bench
