// What counting costs: an allocation and its release through the counting allocator that reprise
// puts in place, against LibTorch's own in the same process.
#include <c10/core/CPUAllocator.h>

#include "benches.h"
#include "benchmarks/support/race.h"

namespace reprise::bench {

void allocation(Session& session) {
  struct Size {
    const char* name;
    std::size_t bytes;
  };
  Race race(session, "allocation", nullptr);
  constexpr Size kSizes[] = {{"256 B", 256}, {"64 KiB", 64 << 10}, {"4 MiB", 4 << 20}};
  for (const Size& size : kSizes) {
    const auto through = [bytes = size.bytes](c10::Allocator* allocator) -> Step {
      return [allocator, bytes] { allocator->allocate(bytes); };
    };
    race.add(size.name, through(c10::GetAllocator(c10::kCPU)));
    race.add_peer(size.name, through(c10::GetDefaultCPUAllocator()));
  }
  race.run(Seconds(5));
  for (const Size& size : kSizes) {
    const Formula nanoseconds = [&size](const Round& round) { return 1e9 * round[size.name]; };
    race.report(size.name, "ns", nanoseconds);
  }
}

}  // namespace reprise::bench
