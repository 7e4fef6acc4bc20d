// Everything is checked before anything is changed. Sums stay far from overflow, and small enough
// that doubles hold nanoseconds exactly.
#include "plan/trace/trace_builder.h"

#include <reprise/error.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace reprise::plan {

namespace {

constexpr std::int64_t kMostBytesInAll = std::int64_t{1} << 60;

[[noreturn]] void refuse(const std::string& reason) { throw UsageError(reason); }

std::string quoted(std::string_view name) { return "\"" + std::string(name) + "\""; }

void check_sum(std::int64_t sum, std::int64_t added, std::int64_t most, const char* what) {
  if (added < 0) refuse(std::string(what) + " are below zero: " + std::to_string(added));
  if (added > most - sum) {
    refuse(std::string(what) + " of the trace add up to more than " + std::to_string(most));
  }
}

}  // namespace

TraceBuilder::Slot TraceBuilder::known(std::string_view name) const {
  const auto found = slots_.find(name);
  if (found == slots_.end()) refuse(quoted(name) + " was not made before this event");
  return found->second;
}

TraceBuilder::Index TraceBuilder::held(std::string_view name) const {
  const Index tensor = bound_[known(name)];
  if (holds_[tensor] == 0) refuse(quoted(name) + " was released before this event");
  return tensor;
}

void TraceBuilder::require_new(std::string_view name) const {
  if (slots_.contains(name)) {
    refuse(quoted(name) + " was made before: every tensor needs a new name");
  }
}

TraceBuilder::Index TraceBuilder::begin_operator(std::string_view name,
                                                 std::span<const std::string_view> arguments,
                                                 std::int64_t nanoseconds) {
  Trace::Operator made;
  made.nanoseconds = nanoseconds;
  nanoseconds_ += nanoseconds;
  const auto named = operator_names_.try_emplace(std::string(name), operator_names_.size()).first;
  made.name = named->second;
  if (made.name == trace_.names.size()) trace_.names.emplace_back(name);
  made.arguments.begin = static_cast<Index>(trace_.arguments.size());
  for (const std::string_view each : arguments) trace_.arguments.push_back(bound_[known(each)]);
  made.arguments.end = static_cast<Index>(trace_.arguments.size());
  made.results.begin = made.results.end = static_cast<Index>(trace_.tensors.size());
  trace_.operators.push_back(made);
  return static_cast<Index>(trace_.operators.size() - 1);
}

// Of the operator that was begun last; binds no name.
void TraceBuilder::add_result(std::int64_t bytes, std::int64_t view_of) {
  Trace::Operator& producer = trace_.operators.back();
  const auto operator_index = static_cast<Index>(trace_.operators.size() - 1);
  Trace::Tensor tensor{.producer = operator_index, .value = 0, .is_view = view_of >= 0};
  if (tensor.is_view) {
    const Index viewed = trace_.arguments[producer.arguments.begin + static_cast<Index>(view_of)];
    tensor.value = trace_.tensors[viewed].value;
  } else {
    tensor.value = static_cast<Index>(trace_.values.size());
    trace_.values.push_back({.bytes = bytes, .producer = operator_index});
    producer.bytes += bytes;
    bytes_ += bytes;
  }
  trace_.tensors.push_back(tensor);
  holds_.push_back(1);
  ++producer.results.end;
}

void TraceBuilder::run() {
  trace_.events.push_back({Trace::Do::kRun, static_cast<Index>(trace_.operators.size() - 1)});
}

void TraceBuilder::bind(std::string_view name, Index tensor) {
  const auto [slot, is_new] = slots_.try_emplace(std::string(name), bound_.size());
  if (is_new) {
    bound_.push_back(tensor);
  } else {
    bound_[slot->second] = tensor;
  }
}

void TraceBuilder::let_go(Index tensor) {
  --holds_[tensor];
  trace_.events.push_back({Trace::Do::kRelease, tensor});
}

void TraceBuilder::constant(std::string_view name, std::int64_t bytes) {
  require_new(name);
  check_sum(bytes_, bytes, kMostBytesInAll, "bytes");
  begin_operator("constant", {}, 0);
  trace_.operators.back().is_constant = true;
  add_result(bytes, -1);
  bind(name, static_cast<Index>(trace_.tensors.size() - 1));
  run();
  trace_.events.push_back({Trace::Do::kKeep, static_cast<Index>(trace_.tensors.size() - 1)});
}

void TraceBuilder::call(std::string_view name, std::span<const std::string_view> arguments,
                        std::span<const Result> results, std::int64_t nanoseconds) {
  check_sum(nanoseconds_, nanoseconds, TraceBuilder::kMostNanoseconds, "nanoseconds");
  for (const std::string_view each : arguments) known(each);
  std::int64_t bytes = bytes_;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& each = results[i];
    require_new(each.name);
    for (std::size_t j = 0; j < i; ++j) {
      if (results[j].name == each.name) refuse(quoted(each.name) + " is named twice as a result");
    }
    if (each.view_of < -1 || each.view_of >= static_cast<std::int64_t>(arguments.size())) {
      refuse(quoted(each.name) + " is a view of argument " + std::to_string(each.view_of) +
             ", but \"" + std::string(name) + "\" has " + std::to_string(arguments.size()) +
             "; give one of them, counted from 0, or -1");
    }
    check_sum(bytes, each.bytes, kMostBytesInAll, "bytes");
    bytes += each.bytes;
  }

  begin_operator(name, arguments, nanoseconds);
  for (const Result& each : results) {
    add_result(each.bytes, each.view_of);
    bind(each.name, static_cast<Index>(trace_.tensors.size() - 1));
  }
  run();
}

void TraceBuilder::mutate(std::string_view name, std::span<const std::string_view> arguments,
                          std::span<const std::int64_t> written, std::int64_t nanoseconds) {
  check_sum(nanoseconds_, nanoseconds, TraceBuilder::kMostNanoseconds, "nanoseconds");
  for (const std::string_view each : arguments) known(each);
  std::int64_t bytes = bytes_;
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (written[i] < 0 || written[i] >= static_cast<std::int64_t>(arguments.size())) {
      refuse("\"" + std::string(name) + "\" writes to argument " + std::to_string(written[i]) +
             ", but it has " + std::to_string(arguments.size()) + "; arguments are counted from 0");
    }
    const std::string_view target = arguments[written[i]];
    for (std::size_t j = 0; j < i; ++j) {
      if (arguments[written[j]] == target)
        refuse(quoted(target) + " is written to twice by one call");
    }
    const std::int64_t size = trace_.values[trace_.tensors[held(target)].value].bytes;
    check_sum(bytes, size, kMostBytesInAll, "bytes");
    bytes += size;
  }

  const Index made = begin_operator(name, arguments, nanoseconds);
  for (const std::int64_t each : written) {
    const Index old = trace_.arguments[trace_.operators[made].arguments.begin + each];
    add_result(trace_.values[trace_.tensors[old].value].bytes, -1);
  }
  run();
  for (std::size_t i = 0; i < written.size(); ++i) {
    const Slot slot = known(arguments[written[i]]);
    let_go(
        std::exchange(bound_[slot], trace_.operators[made].results.begin + static_cast<Index>(i)));
  }
}

void TraceBuilder::copy(std::string_view to, std::string_view from) {
  require_new(to);
  const Index tensor = held(from);
  bind(to, tensor);
  ++holds_[tensor];
  trace_.events.push_back({Trace::Do::kHold, tensor});
}

void TraceBuilder::copy_from(std::string_view to, std::string_view from) {
  const Index tensor = held(from);
  const Slot slot = known(to);
  held(to);
  // Held first: letting go of the last hold would drop what is held again at once.
  ++holds_[tensor];
  trace_.events.push_back({Trace::Do::kHold, tensor});
  let_go(std::exchange(bound_[slot], tensor));
}

void TraceBuilder::release(std::string_view name) {
  if (slots_.contains(name)) let_go(held(name));
}

Trace TraceBuilder::finish() && {
  if (trace_.operators.empty()) refuse("the trace has no operator");
  for (const Index tensor : bound_) {
    if (holds_[tensor] > 0) trace_.events.push_back({Trace::Do::kKeep, tensor});
  }
  return std::move(trace_);
}

}  // namespace reprise::plan
