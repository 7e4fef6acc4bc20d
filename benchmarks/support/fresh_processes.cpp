#include "benchmarks/support/fresh_processes.h"

#include <reprise/saved_tensor_hooks.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "benchmarks/chain.h"
#include "benchmarks/tape_steps.h"
#include "core/statistics.h"
#include "libtorch/operators/operator_interceptor.h"

namespace reprise::bench {
namespace {

constexpr const char* kStep = "chain";
constexpr const char* kStock = "stock";

const at::Tensor& itself(const at::Tensor& tensor) { return tensor; }

NamedSteps chain_step(c10::Device device) { return {{kStep, forward_of(device, sin_chain)}}; }

struct Side {
  std::string_view name;
  void (*put_in_place)();
  NamedSteps (*steps)(c10::Device) = chain_step;
};

constexpr Side kSides[] = {
    {kStock, [] {}},
    {"hooks", [] { SavedTensorHooksScope opened_once(itself, itself); }},
    {"interceptor", [] { libtorch::operator_interceptor_variant(); }},
    {"tape", [] {}, tape_steps},
};

PeerProcess fresh_process(const std::string& side, c10::Device device) {
  return PeerProcess({"/proc/self/exe", "--serve-side", side, "--device", device.str()});
}

// Microseconds an operator takes in one fresh process of each side.
struct Pair {
  double stock;
  double other;
};

Pair time_pair(const std::string& side, c10::Device device, Seconds limit) {
  PeerProcess stock = fresh_process(kStock, device);
  PeerProcess other = fresh_process(side, device);
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

// The medians over the rounds of one fresh process.
std::vector<double> in_one_process(const std::string& side, c10::Device device,
                                   std::vector<std::string> steps,
                                   const std::vector<Wanted>& wanted, Seconds limit) {
  PeerProcess process = fresh_process(side, device);
  std::vector<std::vector<double>> of_rounds(wanted.size());
  std::minstd_rand order(1);
  for (const Stopwatch watch; of_rounds.front().size() < 5 || watch.elapsed() < limit;) {
    std::shuffle(steps.begin(), steps.end(), order);
    std::map<std::string, double> seconds;
    for (const std::string& step : steps) seconds[step] = process.time(step, 25);
    const Round round(std::move(seconds));
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      of_rounds[k].push_back(wanted[k].formula(round));
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : of_rounds) medians.push_back(median(each));
  return medians;
}

}  // namespace

void compare_with_stock(Session& session, const std::string& side, const std::string& bench,
                        const std::string& name) {
  std::vector<double> ours;
  std::vector<double> stock;
  const int pairs = session.quick() ? 2 : 15;
  for (int i = 0; i < pairs; ++i) {
    const Pair pair = time_pair(side, session.device(), Seconds(session.quick() ? 0.1 : 1));
    ours.push_back(pair.other);
    stock.push_back(pair.stock);
  }
  // sin itself is in both sides' figures: the bar is what 0 can mean beside the noise of that.
  session.report(
      make_figure(bench, name + ", peer: stock", "µs", ours, stock, {.above_peer_at_most = 0.02}));
}

void over_processes(Session& session, const std::string& side, const std::string& bench,
                    const std::vector<std::string>& steps, const std::vector<Wanted>& wanted) {
  std::vector<std::vector<double>> of_processes(wanted.size());
  const int processes = session.quick() ? 2 : 25;
  for (int i = 0; i < processes; ++i) {
    const std::vector<double> medians =
        in_one_process(side, session.device(), steps, wanted, Seconds(session.quick() ? 0.1 : 1));
    for (std::size_t k = 0; k < wanted.size(); ++k) of_processes[k].push_back(medians[k]);
  }
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const Wanted& each = wanted[k];
    session.report(make_figure(bench, each.name, each.unit, of_processes[k], {}, each.bar));
  }
}

void serve_side(const std::string& side, c10::Device device) {
  const auto* found = std::find_if(std::begin(kSides), std::end(kSides),
                                   [&](const Side& candidate) { return candidate.name == side; });
  if (found == std::end(kSides)) throw std::invalid_argument("no such side: " + side);
  found->put_in_place();
  const NamedSteps steps = found->steps(device);
  serve(
      side, [&](const std::string& name) { return steps.contains(name); },
      [&](const std::string& name, int calls) {
        const auto step = steps.find(name);
        if (step == steps.end()) throw std::invalid_argument("no such step: " + name);
        return time_calls(step->second, calls, device);
      });
}

}  // namespace reprise::bench
