// From what was noted to a graph: values that can be dropped become storages, all other bytes what
// lies beside them.
#include "plan/step/step_record.h"

#include <algorithm>
#include <utility>

namespace reprise::plan {
namespace {

// Bytes of what each call reads and makes, and can be dropped.
class RecordBytes {
 public:
  explicit RecordBytes(const StepRecord& record) : record_(record) {
    ValueNumber most = 0;
    for (const StepRecord::Made& made : record.makes) most = std::max(most, made.value);
    bytes_.assign(record.makes.empty() ? 0 : std::size_t{most} + 1, 0);
    for (const StepRecord::Made& made : record.makes) {
      if (!made.is_fixed()) bytes_[made.value] = made.bytes;
    }
  }

  std::int64_t of(std::size_t call) const {
    std::int64_t sum = 0;
    for (const ValueNumber value : record_.reads_of(call)) sum += of_value(value);
    for (const StepRecord::Made& made : record_.makes_of(call)) sum += of_value(made.value);
    return sum;
  }
  // 0 if it cannot be dropped.
  std::int64_t of_value(ValueNumber value) const {
    return value < bytes_.size() ? bytes_[value] : 0;
  }

 private:
  const StepRecord& record_;
  std::vector<std::int64_t> bytes_;
};

// What is fixed later is there from its making on.
std::vector<std::int64_t> beside_of(const StepRecord& record, std::int64_t budget) {
  const std::size_t calls = record.calls.size();
  std::vector<std::int64_t> beside(calls + 1, 0);
  for (std::size_t call = 0; call < calls; ++call) {
    for (const StepRecord::Made& made : record.makes_of(call)) {
      if (!made.is_fixed()) continue;
      const std::size_t end = std::min<std::size_t>(made.fixed_at, calls + 1);
      for (std::size_t slot = call; slot < end; ++slot) beside[slot] += made.bytes;
    }
  }
  const RecordBytes bytes(record);
  for (std::size_t call = 0; call < calls; ++call) {
    const std::int64_t left = std::max<std::int64_t>(budget - bytes.of(call), 0);
    beside[call] = std::min(beside[call] + record.calls[call].beside, left);
  }
  std::int64_t kept = 0;
  for (const ValueNumber value : record.kept) kept += bytes.of_value(value);
  beside[calls] =
      std::min(beside[calls] + record.beside_at_end, std::max<std::int64_t>(budget - kept, 0));
  return beside;
}

}  // namespace

std::span<const ValueNumber> StepRecord::reads_of(std::size_t call) const {
  const std::uint32_t begin = call == 0 ? 0 : calls[call - 1].reads_end;
  return std::span(reads).subspan(begin, calls[call].reads_end - begin);
}

std::span<const StepRecord::Made> StepRecord::makes_of(std::size_t call) const {
  const std::uint32_t begin = call == 0 ? 0 : calls[call - 1].makes_end;
  return std::span(makes).subspan(begin, calls[call].makes_end - begin);
}

std::int64_t StepRecord::nanoseconds() const {
  std::int64_t sum = 0;
  for (const Call& call : calls) sum += call.nanoseconds;
  return sum;
}

RecordedGraph graph_of(const StepRecord& record, std::int64_t budget) {
  const std::vector<std::int64_t> beside_calls = beside_of(record, budget);
  Trace trace;
  std::vector<std::int64_t> beside;
  std::vector<ValueNumber> values;
  std::vector<std::uint32_t> calls;
  std::vector<Trace::Index> tensor_of;  // by number
  constexpr Trace::Index kNone = std::numeric_limits<Trace::Index>::max();
  trace.names.emplace_back();
  Trace::Operator op;
  const auto begin = [&](std::uint32_t call, std::int64_t nanoseconds) {
    op = {};
    op.nanoseconds = nanoseconds;
    op.arguments.begin = op.arguments.end = static_cast<Trace::Index>(trace.arguments.size());
    op.results.begin = op.results.end = static_cast<Trace::Index>(trace.tensors.size());
    calls.push_back(call);
    beside.push_back(beside_calls[call]);
  };
  const auto make = [&](const StepRecord::Made& made) {
    if (made.value >= tensor_of.size()) tensor_of.resize(std::size_t{made.value} + 1, kNone);
    tensor_of[made.value] = static_cast<Trace::Index>(trace.tensors.size());
    const auto index = static_cast<Trace::Index>(trace.operators.size());
    trace.tensors.push_back({index, static_cast<Trace::Index>(trace.values.size()), false});
    trace.values.push_back({made.bytes, index});
    values.push_back(made.value);
    op.bytes += made.bytes;
    op.results.end = static_cast<Trace::Index>(trace.tensors.size());
  };
  for (std::uint32_t call = 0; call < record.calls.size(); ++call) {
    const StepRecord::Call& noted = record.calls[call];
    begin(call, noted.again_nanoseconds < 0 ? noted.nanoseconds : noted.again_nanoseconds);
    for (const ValueNumber read : record.reads_of(call)) {
      if (read < tensor_of.size() && tensor_of[read] != kNone) {
        trace.arguments.push_back(tensor_of[read]);
      }
    }
    op.arguments.end = static_cast<Trace::Index>(trace.arguments.size());
    for (const StepRecord::Made& made : record.makes_of(call)) {
      if (!made.is_fixed() && made.return_nanoseconds < 0) make(made);
    }
    trace.operators.push_back(op);
    const std::size_t own = beside.size() - 1;
    for (const StepRecord::Made& made : record.makes_of(call)) {
      if (made.is_fixed() || made.return_nanoseconds < 0) continue;
      beside[own] += made.bytes;
      begin(call, made.return_nanoseconds);
      make(made);
      trace.operators.push_back(op);
    }
  }
  beside.push_back(beside_calls.back());
  for (const ValueNumber value : record.kept) {
    if (value < tensor_of.size() && tensor_of[value] != kNone) {
      trace.events.push_back({Trace::Do::kKeep, tensor_of[value]});
    }
  }
  return {StepGraph(trace, 0, std::move(beside)), std::move(values), std::move(calls)};
}

}  // namespace reprise::plan
