// Everything is kept until the end: what was there before the step shows only when it is read, and
// belongs in front.
#include <reprise/budget_extensions.h>
#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/trace/trace_writer.h"

namespace reprise {

using plan::TraceWriter;

struct TraceRecorder::Impl {
  explicit Impl(const std::filesystem::path& to) : file(to), writer(to) {}

  struct Event {
    std::string name;  // of an operator; empty: a release
    std::vector<TraceWriter::Id> arguments = {};
    std::vector<std::size_t> written = {};
    std::vector<TraceWriter::Result> results = {};
    std::int64_t nanoseconds = 0;
  };
  enum class Known { kConstant, kMade, kReleased };

  void note(const Operator& done);
  void write(const Event& event);
  void write();

  std::filesystem::path file;
  TraceWriter writer;
  std::unordered_map<std::uint64_t, Known> known;
  std::vector<Memory> constants;
  std::vector<Event> events;
  bool is_out_of_memory = false;
  bool is_closed = false;
};

void TraceRecorder::Impl::note(const Operator& done) {
  Event event{.name = std::string(done.name),
              .nanoseconds = std::llround(std::max(done.time.count(), 0.0) * 1e9)};
  for (std::size_t i = 0; i < done.arguments.size(); ++i) {
    const Memory& argument = done.arguments[i];
    const auto [place, is_new] = known.try_emplace(argument.id, Known::kConstant);
    if (is_new) constants.push_back(argument);
    // Another thread may have let go of it while the operator ran.
    if (place->second == Known::kReleased) continue;
    const bool is_written = std::ranges::count(done.written, i) != 0;
    const bool is_first = std::ranges::count(event.arguments, argument.id) == 0;
    if (is_written && is_first && place->second == Known::kMade) {
      event.written.push_back(event.arguments.size());
    }
    event.arguments.push_back(argument.id);
  }
  for (const Memory& result : done.results) {
    known[result.id] = Known::kMade;
    event.results.push_back({.id = result.id, .bytes = result.bytes.count});
  }
  events.push_back(std::move(event));
}

void TraceRecorder::Impl::write(const Event& event) {
  if (event.name.empty()) return writer.release(event.arguments.front());
  // One that makes something and writes is two, of which the first takes the time.
  const bool is_call = event.written.empty() || !event.results.empty();
  if (is_call) writer.call(event.name, event.arguments, event.results, event.nanoseconds);
  if (event.written.empty()) return;
  writer.mutate(event.name, event.arguments, event.written, is_call ? 0 : event.nanoseconds);
}

void TraceRecorder::Impl::write() {
  for (const Memory& constant : constants) writer.constant(constant.id, constant.bytes.count);
  for (const Event& event : events) write(event);
}

TraceRecorder::TraceRecorder(const std::filesystem::path& file)
    : impl_(std::make_unique<Impl>(file)) {}

TraceRecorder::~TraceRecorder() {
  if (impl_->is_closed) return;
  try {
    impl_->write();
  } catch (const std::bad_alloc&) {
    // As a full disk: nobody is left to be told.
    impl_->is_out_of_memory = true;
  }
}

void TraceRecorder::recorded(const Operator& done) noexcept {
  try {
    impl_->note(done);
  } catch (const std::bad_alloc&) {
    impl_->is_out_of_memory = true;
  }
}

void TraceRecorder::released(const Memory& memory) noexcept {
  const auto place = impl_->known.find(memory.id);
  if (place == impl_->known.end()) return;
  place->second = Impl::Known::kReleased;
  try {
    impl_->events.push_back({.name = {}, .arguments = {memory.id}});
  } catch (const std::bad_alloc&) {
    impl_->is_out_of_memory = true;
  }
}

void TraceRecorder::close() {
  if (std::exchange(impl_->is_closed, true)) return;
  if (impl_->is_out_of_memory) {
    throw Error("the trace " + impl_->file.string() +
                " is not complete: there was no memory for all of it; record a smaller step");
  }
  impl_->write();
  impl_->writer.close();
}

}  // namespace reprise
