// The benchmarks by name: one function each, in a file of its name, and one line in benches.cpp.
#pragma once

#include <span>
#include <string_view>

#include "benchmarks/support/session.h"

namespace reprise::bench {

struct Bench {
  std::string_view name;
  std::string_view summary;
  void (*run)(Session&);
  // Whether it runs on Session::device(). The others measure the host, and have no device.
  bool has_device = false;
};

std::span<const Bench> all_benches();

void accelerator(Session& session);
void allocation(Session& session);
void compressed_store(Session& session);
void evict_scale(Session& session);
void every_block_coarse(Session& session);
void every_block_fine(Session& session);
void hooks(Session& session);
void interceptor_overhead(Session& session);
void memory_law(Session& session);
void offload_disk(Session& session);
void region_chain(Session& session);
void region_overhead(Session& session);
void selective_attention(Session& session);
void selective_coarse(Session& session);
void selective_fine(Session& session);
void sequential_fine(Session& session);
void tape_overhead(Session& session);
void tape_budget(Session& session);
void rotor_solve(Session& session);
void chain_quality(Session& session);
void hindsight_quality(Session& session);
void learned_budget(Session& session);
void hindsight_vs_ilp(Session& session);
void predicted_peak(Session& session);
void simulate(Session& session);
void influence_overhead(Session& session);
void pgac_budget(Session& session);
void pgac_exact(Session& session);
void pgac_vs_static(Session& session);
void lossy_tier(Session& session);
void pipeline_modes(Session& session);
void pipeline_efficiency(Session& session);
void pipeline_overhead(Session& session);
void pipeline_bubble(Session& session);

}  // namespace reprise::bench
