// A step beside the plans of earlier ones: where it is in them, which values the plan can do
// without for now, and what is noted for a plan to come. Under libtorch::limit_mutex().
#pragma once

#include <reprise/memory.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/step/step_record.h"
#include "tape/learning.h"
#include "tape/value.h"

namespace reprise::tape {

struct Following {
  // Null: nothing is followed, and nothing noted.
  Learning* learning = nullptr;
  plan::PrefixHash prefix;
  std::size_t calls = 0;
  // Of a step that has gone like this one so far.
  Learning::Script script;
  // From then on its calls are those of no planned step.
  bool is_lost = false;
  std::int64_t followed = 0;

  // By number, those that live.
  std::vector<Value*> values;
  // What the plan can do without, and is there: until it is made again, and for good.
  std::vector<Value*> spare, forgotten;

  std::optional<plan::StepRecord> record;
  // Of the record's calls, on an accelerator: signatures, and bytes.
  std::vector<std::pair<std::uint64_t, std::int64_t>> on_device;
  std::vector<std::uint32_t> made_at;  // by number, in the record's `makes`
  // Of values that a plan might drop, those that are there; and what the allocator handed out
  // beyond them.
  std::int64_t droppable_bytes = 0;
  std::int64_t droppable_slack = 0;

  bool is_on() const { return learning != nullptr; }
  // Whether the script has a say about it, and wants it there.
  bool wants(const Value& value) const {
    return script != nullptr && value.absence == Absence::kNone && value.number != kNoNumber &&
           script->speaks_of(value.number);
  }
};

class Tape;

// What a record holds of a call.
struct CallNote {
  // That it took, and that running it again takes.
  double seconds = 0;
  double again = 0;
  // Bytes that are there while it runs whatever a plan does, and those that it took.
  std::int64_t beside = 0;
  std::int64_t taken = 0;
  // Of the former, what is in no value of the tape's, nor in the bits of one.
  std::int64_t beside_values = 0;
  // On an accelerator: what the seconds are asked by once more when the step ends.
  std::uint64_t signature = 0;
  std::int64_t bytes = 0;
};

// What a call takes while it runs, for a record.
class CallMeter {
 public:
  // `pinned`: what it reads.
  CallMeter(Tape& tape, std::span<Value* const> pinned);
  ~CallMeter();
  CallMeter(const CallMeter&) = delete;
  CallMeter& operator=(const CallMeter&) = delete;
  // When it has run.
  void tell(CallNote& note) const;
  // Something is about to be dropped, and the level will fall by it.
  void before_drop();

 private:
  std::int64_t level() const;

  Tape& tape_;
  // Since the last drop.
  std::optional<PeakScope> peak_;
  std::int64_t start_;
  std::int64_t beside_;
  std::int64_t beside_values_;
  std::int64_t dropped_;
  // The highest level that there was before drops, had nothing been dropped.
  std::int64_t highest_ = 0;
};

}  // namespace reprise::tape
