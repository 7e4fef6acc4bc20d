// The format is Google's Trace Event Format: one JSON object an event, times in microseconds.
#include "apps/cli/training/chrome_trace.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

namespace reprise::app {

namespace {

constexpr int kProcess = 1;
constexpr double kMicroseconds = 1e6;

}  // namespace

void ChromeTrace::recorded(const Operator& done) noexcept {
  add(Event::Kind::kOperator, done.name, done.time.count(), Bytes(0), done.live, done.at);
}

void ChromeTrace::dropped(const Value& value) noexcept {
  add(Event::Kind::kDrop, value.maker, 0, value.bytes, value.live, value.at);
}

void ChromeTrace::restored(const Value& value) noexcept {
  add(Event::Kind::kReturn, value.maker, 0, value.bytes, value.live, value.at);
}

void ChromeTrace::replayed(const Replay& done) noexcept {
  add(Event::Kind::kReplay, done.name, done.time.count(), Bytes(0), done.live, done.at);
}

void ChromeTrace::add(Event::Kind kind, std::string_view name, double seconds, Bytes bytes,
                      Bytes live, std::optional<Seconds> at) noexcept {
  const auto now = std::chrono::steady_clock::now();
  try {
    if (events_.empty())
      start_ = now - std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::duration<double>(seconds));
    const auto self = std::this_thread::get_id();
    auto thread = std::ranges::find(threads_, self);
    if (thread == threads_.end()) thread = threads_.insert(threads_.end(), self);
    events_.push_back({.kind = kind,
                       .name = std::string(name),
                       .end = at.value_or(now - start_).count(),
                       .seconds = seconds,
                       .bytes = bytes,
                       .live = live,
                       .thread = static_cast<std::size_t>(thread - threads_.begin())});
  } catch (const std::bad_alloc&) {
    // Short enough to need no memory itself.
    lost_ = "out of memory";
  }
}

void ChromeTrace::write(const std::string& text) {
  if (lost_.empty() && std::fputs(text.c_str(), file_) < 0) {
    lost_ = std::generic_category().message(errno);
  }
}

void ChromeTrace::write(const Event& event) {
  const double end = event.end * kMicroseconds;
  const double start = std::max(0.0, end - event.seconds * kMicroseconds);
  nlohmann::json json = {
      {"pid", kProcess}, {"tid", event.thread + 1}, {"name", event.name}, {"ts", start}};
  switch (event.kind) {
    case Event::Kind::kOperator:
    case Event::Kind::kReplay: {
      const bool is_replay = event.kind == Event::Kind::kReplay;
      json.update({{"ph", "X"}, {"dur", end - start}, {"cat", is_replay ? "replay" : "operator"}});
      if (is_replay) json.update({{"name", "replay " + event.name}, {"cname", "bad"}});
      break;
    }
    case Event::Kind::kDrop:
    case Event::Kind::kReturn: {
      const bool is_drop = event.kind == Event::Kind::kDrop;
      json.update({{"ph", "i"},
                   {"s", "t"},
                   {"cat", is_drop ? "drop" : "restore"},
                   {"name", (is_drop ? "drop " : "restore ") + event.name},
                   {"args", {{"bytes", event.bytes.count}}}});
      break;
    }
  }
  write(json.dump() + ",\n");
  const nlohmann::json live = {{"pid", kProcess},
                               {"name", "bytes alive"},
                               {"ph", "C"},
                               {"ts", end},
                               {"args", {{"bytes", event.live.count}}}};
  write(live.dump() + ",\n");
}

void ChromeTrace::close(const std::string& step) {
  double end = 0;
  write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  for (const Event& event : events_) {
    end = std::max(end, event.end);
    write(event);
  }
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    const nlohmann::json name = {{"pid", kProcess},
                                 {"tid", i + 1},
                                 {"ph", "M"},
                                 {"name", "thread_name"},
                                 {"args", {{"name", fmt::format("thread {}", i + 1)}}}};
    write(name.dump() + ",\n");
  }
  const nlohmann::json whole = {{"pid", kProcess},
                                {"tid", 0},
                                {"ph", "X"},
                                {"cat", "step"},
                                {"name", step},
                                {"ts", 0.0},
                                {"dur", end * kMicroseconds}};
  write(whole.dump() + "\n]}\n");
  if (lost_.empty() && std::fflush(file_) != 0) {
    lost_ = std::generic_category().message(errno);
  }
  if (lost_.empty()) return;
  throw Error(fmt::format("the trace {} is not complete: {}", path_, lost_));
}

}  // namespace reprise::app
