// Records a step as a trace that read_trace() and simrd read; trace.h documents the events.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace reprise::plan {

// Tensors are numbers of the caller's choice, each used for one tensor only; they become names,
// "x7". Calls must come in the order of what happened. Not for several threads at once.
class TraceWriter {
 public:
  using Id = std::uint64_t;

  struct Result {
    Id id = 0;
    std::int64_t bytes = 0;
    std::int64_t view_of = -1;  // the argument, from 0, that it is a view of; -1: of none
  };

  // Makes or replaces the file, compressed if its name ends in ".gz". Throws UsageError, naming the
  // file and the reason, if that cannot be.
  explicit TraceWriter(const std::filesystem::path& file);
  // Closes; what cannot be written then is lost without a word.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // What was written so far belongs to no step.
  void start();
  // A tensor without a producer: a parameter, an input.
  void constant(Id id, std::int64_t bytes);
  void call(std::string_view operator_name, std::span<const Id> arguments,
            std::span<const Result> results, std::int64_t nanoseconds);
  // An operator that returns nothing new but writes to those of its arguments, from 0.
  void mutate(std::string_view operator_name, std::span<const Id> arguments,
              std::span<const std::size_t> written, std::int64_t nanoseconds);
  void copy(Id to, Id from);
  void copy_from(Id to, Id from);
  void release(Id id);

  // Writes out the rest. Throws Error, naming the file and the reason, if anything since the
  // beginning could not be written; nothing may be recorded after it.
  void close();

 private:
  void key(std::string_view key);
  void text(std::string_view text);
  void id(Id id);
  void number(std::int64_t number);
  void ids(std::string_view key, std::span<const Id> ids);
  void size(Id id, std::int64_t bytes);
  void begin(std::string_view instruction);
  void end();
  void flush();

  std::filesystem::path file_;
  void* stream_ = nullptr;
  std::string pending_;
  std::string lost_;  // the reason why something could not be written
};

}  // namespace reprise::plan
