// What hooks on saved tensors cost per saved tensor: none open, one that does nothing, and
// SaveOnCpuScope.
//
// "No scope" is compared with LibTorch as it comes: once reprise has put its front before
// autograd's engine it stays there, so the stock side is this same program in processes that never
// open a scope.
#include <reprise/saved_tensor_hooks.h>

#include "benches.h"
#include "benchmarks/support/fresh_processes.h"
#include "chain.h"

namespace reprise::bench {
namespace {

const at::Tensor& unchanged(const at::Tensor& tensor) { return tensor; }

Formula per_tensor_beyond(const char* name, const char* base) {
  return [name, base](const Round& round) { return 1e6 * (round[name] - round[base]) / kChain; };
}

}  // namespace

void hooks(Session& session) {
  compare_with_stock(session, "hooks", "hooks", "no scope");

  Race race(session, "hooks", session.python());
  race.add("plain", backward_of(session.device(), sin_chain));
  race.add("identity", backward_of(session.device(), [](const at::Tensor& x) {
             SavedTensorHooksScope scope(unchanged, unchanged);
             return sin_chain(x);
           }));
  race.add("save_on_cpu", backward_of(session.device(), [](const at::Tensor& x) {
             SaveOnCpuScope scope;
             return sin_chain(x);
           }));
  race.run(Seconds(20));
  race.report("identity", "µs", per_tensor_beyond("identity", "plain"), {.at_most = 0.35});
  race.report("save_on_cpu", "µs", per_tensor_beyond("save_on_cpu", "plain"), {.at_most = 0.6});
}

}  // namespace reprise::bench
