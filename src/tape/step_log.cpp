#include "tape/step_log.h"

#include "core/two_kinds.h"

namespace reprise::tape {

using plan::OnlineStep;

StepLog::Index StepLog::begin(std::span<Value* const> reads, double time) {
  for (const Value* value : reads) {
    if (value->logged != kNone) step_.reads.push_back(value->logged);
  }
  if (step_.calls.empty()) began_ = time;
  step_.calls.push_back(
      {.time = time - began_, .reads_end = static_cast<Index>(step_.reads.size())});
  const auto call = static_cast<Index>(step_.calls.size() - 1);
  add(Do::kBegin, call);
  return call;
}

void StepLog::ran(Index call, std::int64_t beside, std::int64_t taken) {
  step_.calls[call].beside = beside;
  step_.calls[call].taken = taken;
  add(Do::kRun, call);
}

StepLog::Index StepLog::alone(const Producer& producer, double time) {
  const std::int64_t beside = step_.calls.empty() ? 0 : step_.calls.back().beside;
  const Index call = begin({}, time);
  step_.calls[call].beside = beside;
  for (const Producer::Output& output : producer.outputs) {
    if (output.value != nullptr) step_.calls[call].taken += output.value->size;
  }
  end(call);
  return call;
}

void StepLog::made(Index call, const Producer& producer, const Costs& costs) {
  using Use = OnlineStep::Input::Use;
  for (const Producer::Input& input : producer.inputs) {
    const Use use = input.use == Producer::Use::kRead     ? Use::kRead
                    : input.use == Producer::Use::kUpdate ? Use::kUpdate
                                                          : Use::kScratch;
    const Index value = input.value != nullptr ? input.value->logged : kNone;
    // Of a root only a copy takes room.
    if (value == kNone && use == Use::kRead) continue;
    step_.inputs.push_back({.value = value, .bytes = input.bytes, .use = use});
  }
  for (const Producer::Output& output : producer.outputs) {
    Value& value = *output.value;
    value.logged = static_cast<Index>(step_.values.size());
    const bool is_packable = value.kind_bit != 0;
    step_.values.push_back(
        {.size = value.size,
         .bytes = value.size + value.slack,
         .own_cost = value.own_cost,
         .weight = value.weight,
         .packed_bytes = is_packable ? bytes_of_bits(value.size / value.width) : 0,
         .pack_seconds = is_packable ? costs.pack(value.size) : 0,
         .store_seconds = costs.store(value.size)});
    step_.outputs.push_back({.value = value.logged, .is_written = output.slot >= 0});
  }
  step_.producers.push_back({.call = call,
                             .form = reinterpret_cast<std::uintptr_t>(&producer.call.form()),
                             .again = producer.again,
                             .inputs_end = static_cast<Index>(step_.inputs.size()),
                             .outputs_end = static_cast<Index>(step_.outputs.size())});
  add(Do::kMake, static_cast<Index>(step_.producers.size() - 1));
}

}  // namespace reprise::tape
