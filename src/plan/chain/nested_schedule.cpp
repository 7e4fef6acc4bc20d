// Reads the operations as the grammar of nested_schedule.h.
#include "plan/chain/nested_schedule.h"

#include <reprise/error.h>

#include <string>
#include <utility>

namespace reprise::plan {
namespace {

using Kind = ScheduleOp::Kind;

class Reader {
 public:
  explicit Reader(const Schedule& schedule) : ops_(schedule.ops) {}

  // Without recursion but for what is run again: chains may be long.
  void stages(std::int32_t first, std::int32_t last, Nests& nests) {
    struct Open {
      std::int32_t first, last;  // run again, unless they are one stage that is kept
      std::size_t at;            // in `nests`
      bool is_kept;
    };
    std::vector<Open> open;
    while (first <= last) {
      const std::int32_t begin = first++;
      const bool is_kept = !next_is(Kind::kForwardCheckpoint, begin);
      if (is_kept) {
        expect(Kind::kForwardKeep, begin, "kept, or run with its input kept");
      } else {
        while (next_is(Kind::kForwardDrop, first)) ++first;
        if (first > last) refuse("no stage is left that is kept");
      }
      open.push_back({begin, first - 1, nests.size(), is_kept});
      const bool is_offloaded = is_kept && next_is(Kind::kOffload, begin);
      if (is_offloaded && is_recomputed_) {
        refuse("stage " + std::to_string(begin) + " goes to a store where it is run again");
      }
      nests.push_back({.stage = begin, .is_offloaded = is_offloaded, .again = {}});
    }
    for (; !open.empty(); open.pop_back()) {
      const Open& each = open.back();
      if (each.is_kept) {
        if (nests[each.at].is_offloaded) {
          expect(Kind::kLoad, each.first, "brought back from the store");
        }
        expect(Kind::kBackward, each.first, "backward");
        continue;
      }
      const bool outer = std::exchange(is_recomputed_, true);
      Nests again;
      stages(each.first, each.last, again);
      nests[each.at].again = std::move(again);
      is_recomputed_ = outer;
    }
  }

  void finish() const {
    if (at_ < ops_.size()) refuse("something is left after all of backward");
  }

 private:
  bool next_is(Kind kind, std::int32_t stage) {
    if (at_ == ops_.size() || !(ops_[at_] == ScheduleOp{kind, stage})) return false;
    ++at_;
    return true;
  }

  void expect(Kind kind, std::int32_t stage, const char* name) {
    if (!next_is(kind, stage)) refuse("stage " + std::to_string(stage) + " should be " + name);
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    throw PlanError("operation " + std::to_string(at_) + " of the schedule: " + reason +
                    ". Regions run schedules in which stages that are not kept run again as a "
                    "whole, when all after them have had their backward, and do not go to a store "
                    "then");
  }

  const std::vector<ScheduleOp>& ops_;
  std::size_t at_ = 0;
  bool is_recomputed_ = false;
};

}  // namespace

Nests nests_of(const Schedule& schedule, std::int64_t stages) {
  Reader reader(schedule);
  Nests nests;
  reader.stages(0, static_cast<std::int32_t>(stages) - 1, nests);
  reader.finish();
  return nests;
}

}  // namespace reprise::plan
