// Lines to events to a Trace. An event may span several lines (a call and its results' sizes), so
// the reader remembers what the line before has announced.
#include "plan/trace.h"

#include <reprise/error.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "plan/json_line.h"
#include "plan/trace_builder.h"

namespace reprise::plan {

namespace {

[[noreturn]] void fail(const std::string& reason) { throw UsageError(reason); }

// Plain files are read by the same calls.
std::string contents(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& reason) {
    fail("cannot read the trace " + file.string() + ": " + reason);
  };
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  // A device may never end; a pipe is where a shell's <(...) comes from.
  if (exists(status) && !is_regular_file(status) && !is_fifo(status)) {
    refuse("it is a folder or a device; give a file of JSON lines");
  }
  errno = 0;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> stream(gzopen(file.c_str(), "rb"), gzclose);
  if (!stream) refuse(errno != 0 ? std::strerror(errno) : "out of memory");
  gzbuffer(stream.get(), 1 << 18);
  std::string text;
  for (;;) {
    constexpr std::size_t kBlock = std::size_t{1} << 17;
    const std::size_t before = text.size();
    text.resize(before + kBlock);
    const int count = gzread(stream.get(), text.data() + before, kBlock);
    int code = Z_OK;
    const char* reason = gzerror(stream.get(), &code);
    // A file that was cut is told as Z_BUF_ERROR after all that could be read.
    if (count < 0 || code == Z_BUF_ERROR) {
      refuse(code == Z_ERRNO ? std::strerror(errno)
             : code == Z_BUF_ERROR
                 ? "the compressed file ends early"
                 : "the compressed file is damaged (" + std::string(reason) + ")");
    }
    text.resize(before + static_cast<std::size_t>(count));
    if (count == 0) return text;
  }
}

class Reader {
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
      fail(std::string(instruction) + " belongs after the CONSTANT or CALL that makes the tensor");
    } else {
      fail("the INSTRUCTION \"" + std::string(instruction) +
           "\" is not known; known are ANNOTATE, CONSTANT, MEMORY, CALL, ALIAS, MUTATE, COPY, "
           "COPY_FROM, RELEASE");
    }
  }

  Trace finish() {
    if (!expected_.empty()) fail("the trace ends where " + announced() + " should follow");
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
      fail("expected " + announced() + " here");
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
    Reader reader;
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
  return parse_trace(contents(file), file.string());
}

}  // namespace reprise::plan
