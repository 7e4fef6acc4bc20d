#include "fresh_processes.h"

#include <reprise/saved_tensor_hooks.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "chain.h"
#include "core/statistics.h"
#include "libtorch/operator_interceptor.h"

namespace reprise::bench {
namespace {

constexpr const char* kStep = "chain";
constexpr const char* kStock = "stock";

const at::Tensor& itself(const at::Tensor& tensor) { return tensor; }

struct Side {
  std::string_view name;
  void (*put_in_place)();
};

constexpr Side kSides[] = {
    {kStock, [] {}},
    {"hooks", [] { SavedTensorHooks opened_once(itself, itself); }},
    {"interceptor", [] { libtorch::operator_interceptor_variant(); }},
};

// Microseconds an operator takes in one fresh process of each side.
struct Pair {
  double stock;
  double other;
};

Pair time_pair(const std::string& side, Seconds limit) {
  PeerProcess stock({"/proc/self/exe", "--serve-side", kStock});
  PeerProcess other({"/proc/self/exe", "--serve-side", side});
  std::vector<double> stock_times;
  std::vector<double> other_times;
  const auto time = [](PeerProcess& process) { return 1e6 * process.time(kStep, 25) / kChain; };
  for (const Stopwatch watch; stock_times.size() < 5 || watch.elapsed() < limit;) {
    const bool stock_first = stock_times.size() % 2 == 0;
    if (stock_first) stock_times.push_back(time(stock));
    other_times.push_back(time(other));
    if (!stock_first) stock_times.push_back(time(stock));
  }
  return {median(stock_times), median(other_times)};
}

}  // namespace

void compare_with_stock(Session& session, const std::string& side, const std::string& bench,
                        const std::string& name) {
  std::vector<double> ours;
  std::vector<double> stock;
  const int pairs = session.quick() ? 2 : 15;
  for (int i = 0; i < pairs; ++i) {
    const Pair pair = time_pair(side, Seconds(session.quick() ? 0.1 : 1));
    ours.push_back(pair.other);
    stock.push_back(pair.stock);
  }
  // sin itself is in both sides' figures: the bar is what 0 can mean beside the noise of that.
  session.report(
      make_figure(bench, name + ", peer: stock", "µs", ours, stock, {.above_peer_at_most = 0.02}));
}

void serve_side(const std::string& side) {
  const auto* found = std::find_if(std::begin(kSides), std::end(kSides),
                                   [&](const Side& candidate) { return candidate.name == side; });
  if (found == std::end(kSides)) throw std::invalid_argument("no such side: " + side);
  found->put_in_place();
  const Step step = forward_of(sin_chain);
  serve(
      side, [](const std::string& name) { return name == kStep; },
      [&](const std::string& name, int calls) {
        if (name != kStep) throw std::invalid_argument("no such step: " + name);
        return time_calls(step, calls);
      });
}

}  // namespace reprise::bench
