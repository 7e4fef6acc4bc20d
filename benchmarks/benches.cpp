// The table of benchmarks: a new one is a new file and one line here.
#include "benches.h"

namespace reprise::bench {

std::span<const Bench> all_benches() {
  static constexpr Bench kBenches[] = {
      {"region_overhead", "what a region adds to one small operator", region_overhead, true},
      {"region_chain", "what a region adds to each tensor saved in it", region_chain, true},
      {"sequential_fine", "100 segments of one small operator", sequential_fine, true},
      {"every_block_fine", "32 small transformer blocks, each a region", every_block_fine, true},
      {"every_block_coarse", "8 larger blocks, each a region: time and peak", every_block_coarse,
       true},
      {"hooks", "what hooks add to each saved tensor", hooks, true},
      {"interceptor_overhead", "what it costs an operator to be seen", interceptor_overhead, true},
      {"selective_fine", "32 small blocks whose matrix products are kept", selective_fine, true},
      {"selective_coarse", "8 larger ones: time and peak", selective_coarse, true},
      {"selective_attention", "blocks that recompute attention's core: bytes and time",
       selective_attention, true},
      {"memory_law", "peak and recomputation as the depth grows", memory_law, true},
      {"offload_disk", "saved tensors on a disk: time and peak", offload_disk},
      {"tape_overhead", "what it costs an operator to be recorded", tape_overhead, true},
      {"tape_budget", "8 larger blocks in fewer and fewer bytes", tape_budget, true},
      {"rotor_solve", "planning a chain of 100 or 339 stages", rotor_solve},
      {"chain_quality", "what planned chains run again, beside equal segments", chain_quality},
      {"hindsight_quality", "plans of steps that are known, beside what none can be below",
       hindsight_quality},
      {"learned_budget", "what a budget saves when it has learned the step", learned_budget, true},
      {"hindsight_vs_ilp", "plans of small steps beside the best that there are", hindsight_vs_ilp},
      {"predicted_peak", "peaks estimated without memory, beside measured ones", predicted_peak,
       true},
      {"influence_overhead", "what scores, averages and masks add to a step", influence_overhead},
      {"pgac_budget", "whether PGAC's steps stay within their bytes", pgac_budget},
      {"pgac_exact", "gradients under every mask of six layers", pgac_exact},
      {"pgac_vs_static", "what PGAC's rankings run again, beside static choices", pgac_vs_static},
      {"lossy_tier", "PGAC's lossy tier: bytes, time, gradient error, validation loss", lossy_tier},
      {"simulate", "simrd's figures, and simulated events a second", simulate},
      {"evict_scale", "a decision what to drop among 100 to 100,000 values", evict_scale},
      {"allocation", "the counting allocator against LibTorch's own", allocation},
      {"accelerator", "steps on an accelerator: regions, budgets and a store on the host",
       accelerator, true},
      {"compressed_store", "values compressed and brought back, a second", compressed_store},
      {"pipeline_modes", "a pipeline's checkpointed micro-batches: time and peak", pipeline_modes},
      {"pipeline_efficiency", "throughput of two partitions beside the published law",
       pipeline_efficiency},
      {"pipeline_overhead", "a pipeline of one partition beside a plain loop", pipeline_overhead},
      {"pipeline_bubble", "idle time of pipelines, simulated and measured", pipeline_bubble},
  };
  return kBenches;
}

}  // namespace reprise::bench
