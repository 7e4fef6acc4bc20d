// Lines to events to a Trace. An event may span several lines (a call and its results' sizes), so
// the reader remembers what the line before has announced.
#include "plan/trace/trace.h"

#include <reprise/error.h>

#include <optional>

#include "plan/io/json_line.h"
#include "plan/io/text_file.h"
#include "plan/trace/trace_builder.h"

namespace reprise::plan {

namespace {

[[noreturn]] void refuse_trace(const std::string& reason) { throw UsageError(reason); }

class InstructionReader {
 public:
  void line(std::string_view text) {
    json_.read(text);
    const std::string_view instruction = json_.text("INSTRUCTION");
    if (!expected_.empty()) {
      size_or_alias(instruction);
    } else if (instruction == "CONSTANT") {
      results_.assign(1, {.name = json_.text("NAME")});
      expected_ = "MEMORY";
      is_constant_ = true;
    } else if (instruction == "CALL") {
      call();
    } else if (instruction == "MUTATE") {
      written_.clear();
      for (const std::string_view each : json_.texts("MUTATE")) {
        written_.push_back(whole_number("MUTATE", each, 0));
      }
      builder_.mutate(json_.text("NAME"), json_.texts("ARGS"), written_, json_.whole("TIME", 0));
    } else if (instruction == "COPY") {
      builder_.copy(json_.text("DST"), json_.text("SRC"));
    } else if (instruction == "COPY_FROM") {
      builder_.copy_from(json_.text("DST"), json_.text("SRC"));
    } else if (instruction == "RELEASE") {
      builder_.release(json_.text("NAME"));
    } else if (instruction == "ANNOTATE") {
      if (json_.text("ANNOTATION") == "START") builder_ = TraceBuilder();
    } else if (instruction == "MEMORY" || instruction == "ALIAS") {
      refuse_trace(std::string(instruction) +
                   " belongs after the CONSTANT or CALL that makes the tensor");
    } else {
      refuse_trace(
          "the INSTRUCTION \"" + std::string(instruction) +
          "\" is not known; known are ANNOTATE, CONSTANT, MEMORY, CALL, ALIAS, MUTATE, COPY, "
          "COPY_FROM, RELEASE");
    }
  }

  Trace finish() {
    if (!expected_.empty()) refuse_trace("the trace ends where " + announced() + " should follow");
    return std::move(builder_).finish();
  }

 private:
  std::string announced() const {
    return "the " + std::string(expected_) + " of \"" + std::string(results_[done_].name) + "\"";
  }

  void call() {
    operator_ = json_.text("NAME");
    const auto arguments = json_.texts("ARGS");
    arguments_.assign(arguments.begin(), arguments.end());
    nanoseconds_ = json_.whole("TIME", 0);
    results_.clear();
    for (const std::string_view each : json_.texts("RESULT")) results_.push_back({.name = each});
    is_constant_ = false;
    done_ = 0;
    if (results_.empty()) {
      builder_.call(operator_, arguments_, results_, nanoseconds_);
    } else {
      expected_ = "MEMORY";
    }
  }

  void size_or_alias(std::string_view instruction) {
    TraceBuilder::Result& result = results_[done_];
    if (instruction != expected_ || json_.text("NAME") != result.name) {
      refuse_trace("expected " + announced() + " here");
    }
    if (instruction == "MEMORY") {
      result.bytes = json_.whole("MEMORY", 0);
      expected_ = "ALIAS";
      if (is_constant_) {
        expected_ = "";
        builder_.constant(result.name, result.bytes);
      }
      return;
    }
    result.view_of = json_.whole("ALIAS", -1);
    expected_ = "MEMORY";
    if (++done_ == results_.size()) {
      expected_ = "";
      done_ = 0;
      builder_.call(operator_, arguments_, results_, nanoseconds_);
    }
  }

  JsonLine json_;
  TraceBuilder builder_;
  // What was announced and is not complete; views into the text, which outlives the reader.
  std::string_view expected_;
  bool is_constant_ = false;
  std::string_view operator_;
  std::vector<std::string_view> arguments_;
  std::vector<TraceBuilder::Result> results_;
  std::size_t done_ = 0;
  std::int64_t nanoseconds_ = 0;
  std::vector<std::int64_t> written_;
};

}  // namespace

std::int64_t Trace::nanoseconds() const {
  std::int64_t sum = 0;
  for (const Operator& each : operators) sum += each.nanoseconds;
  return sum;
}

Trace parse_trace(std::string_view text, const std::string& origin) {
  std::int64_t number = 0;
  try {
    InstructionReader reader;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      ++number;
      const std::string_view line = text.substr(at, end - at);
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) reader.line(line);
      at = end + 1;
    }
    Trace trace = reader.finish();
    trace.lines = number;
    return trace;
  } catch (const UsageError& error) {
    throw UsageError(origin + ":" + std::to_string(number) + ": " + error.what());
  }
}

Trace read_trace(const std::filesystem::path& file) {
  return parse_trace(read_text_file(file, "the trace"), file.string());
}

}  // namespace reprise::plan
