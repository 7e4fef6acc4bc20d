// zlib writes both kinds of file, so there is one way out. An error of writing is kept for close():
// a full disk is no reason to end the training step that is being recorded.
#include "plan/trace/trace_writer.h"

#include <reprise/error.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace reprise::plan {

namespace {

constexpr std::size_t kFlushAt = std::size_t{1} << 16;

gzFile as_stream(void* stream) { return static_cast<gzFile>(stream); }

}  // namespace

TraceWriter::TraceWriter(const std::filesystem::path& file) : file_(file) {
  errno = 0;
  // "T": as it is, without compression.
  stream_ = gzopen(file.c_str(), file.extension() == ".gz" ? "wb" : "wbT");
  if (stream_ == nullptr) {
    throw UsageError("cannot write the trace " + file.string() + ": " +
                     (errno != 0 ? std::strerror(errno) : "out of memory") +
                     "; name a file in a folder that exists and can be written");
  }
  pending_.reserve(2 * kFlushAt);
}

TraceWriter::~TraceWriter() {
  if (stream_ == nullptr) return;
  flush();
  gzclose(as_stream(stream_));
}

void TraceWriter::start() {
  begin("ANNOTATE");
  key("ANNOTATION");
  text("START");
  end();
}

void TraceWriter::constant(Id made, std::int64_t bytes) {
  begin("CONSTANT");
  key("NAME");
  id(made);
  end();
  size(made, bytes);
}

void TraceWriter::call(std::string_view operator_name, std::span<const Id> arguments,
                       std::span<const Result> results, std::int64_t nanoseconds) {
  begin("CALL");
  key("NAME");
  text(operator_name);
  ids("ARGS", arguments);
  key("RESULT");
  pending_ += '[';
  for (const Result& each : results) {
    if (pending_.back() != '[') pending_ += ',';
    id(each.id);
  }
  pending_ += ']';
  key("TIME");
  number(nanoseconds);
  end();
  for (const Result& each : results) {
    size(each.id, each.bytes);
    begin("ALIAS");
    key("NAME");
    id(each.id);
    key("ALIAS");
    number(each.view_of);
    end();
  }
}

void TraceWriter::mutate(std::string_view operator_name, std::span<const Id> arguments,
                         std::span<const std::size_t> written, std::int64_t nanoseconds) {
  begin("MUTATE");
  key("NAME");
  text(operator_name);
  ids("ARGS", arguments);
  key("MUTATE");
  pending_ += '[';
  for (const std::size_t each : written) {
    if (pending_.back() != '[') pending_ += ',';
    pending_ += std::to_string(each);
  }
  pending_ += ']';
  key("TIME");
  number(nanoseconds);
  end();
}

void TraceWriter::copy(Id to, Id from) {
  begin("COPY");
  key("DST");
  id(to);
  key("SRC");
  id(from);
  end();
}

void TraceWriter::copy_from(Id to, Id from) {
  begin("COPY_FROM");
  key("DST");
  id(to);
  key("SRC");
  id(from);
  end();
}

void TraceWriter::release(Id gone) {
  begin("RELEASE");
  key("NAME");
  id(gone);
  end();
}

void TraceWriter::close() {
  if (stream_ == nullptr) return;
  flush();
  if (gzclose(as_stream(std::exchange(stream_, nullptr))) != Z_OK && lost_.empty()) {
    lost_ = errno != 0 ? std::strerror(errno) : "its compressed stream could not be ended";
  }
  if (!lost_.empty()) {
    throw Error("the trace " + file_.string() + " is not complete: " + lost_ +
                "; record it again to a place with more room");
  }
}

void TraceWriter::begin(std::string_view instruction) {
  pending_ += '{';
  key("INSTRUCTION");
  text(instruction);
}

void TraceWriter::key(std::string_view key) {
  if (pending_.back() != '{') pending_ += ',';
  text(key);
  pending_ += ':';
}

// Names of operators have no characters that JSON escapes; others become "_", so that the line
// stays one that can be read.
void TraceWriter::text(std::string_view text) {
  pending_ += '"';
  for (const char c : text) {
    const bool is_plain = static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
    pending_ += is_plain ? c : '_';
  }
  pending_ += '"';
}

void TraceWriter::id(Id id) { pending_.append("\"x").append(std::to_string(id)) += '"'; }

// As a string, as in simrd's own logs.
void TraceWriter::number(std::int64_t number) {
  (pending_ += '"').append(std::to_string(number)) += '"';
}

void TraceWriter::ids(std::string_view name, std::span<const Id> ids) {
  key(name);
  pending_ += '[';
  for (const Id each : ids) {
    if (pending_.back() != '[') pending_ += ',';
    id(each);
  }
  pending_ += ']';
}

void TraceWriter::size(Id of, std::int64_t bytes) {
  begin("MEMORY");
  key("NAME");
  id(of);
  key("MEMORY");
  number(bytes);
  end();
}

void TraceWriter::end() {
  pending_ += "}\n";
  if (pending_.size() >= kFlushAt) flush();
}

void TraceWriter::flush() {
  if (pending_.empty()) return;
  errno = 0;
  const int written =
      gzwrite(as_stream(stream_), pending_.data(), static_cast<unsigned>(pending_.size()));
  if (written <= 0 && lost_.empty()) {
    lost_ = errno != 0 ? std::strerror(errno) : "the file cannot be written";
  }
  pending_.clear();
}

}  // namespace reprise::plan
