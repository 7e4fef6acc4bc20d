// Figures that move with the process: where it happens to put its heap and its libraries changes
// the time of a small operator more than what is looked for does, so several fresh processes take
// part.
//
// A side is a process in which something may have been put in place for good, such as the front
// before autograd's engine, and which runs steps by their names.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/support/race.h"
#include "benchmarks/support/session.h"

namespace reprise::bench {

// This program before and after something was put in place in it, each side in processes of its
// own that run a chain of sin: reports the microseconds an operator, "<bench>" against "stock";
// `runs` counts processes.
void compare_with_stock(Session& session, const std::string& side, const std::string& bench,
                        const std::string& name);

struct Wanted {
  std::string name;
  std::string unit;
  Formula formula;
  Bar bar;
};

// Runs the steps of `side` in fresh processes, and reports for each of `wanted` the median over
// the processes of its formula's median over a process' rounds.
void over_processes(Session& session, const std::string& side, const std::string& bench,
                    const std::vector<std::string>& steps, const std::vector<Wanted>& wanted);

// The other end, in the fresh process. `side`: "stock", or what is put in place: "hooks" or
// "interceptor"; or "tape", with the steps of tape_steps.h.
void serve_side(const std::string& side, c10::Device device);

}  // namespace reprise::bench
