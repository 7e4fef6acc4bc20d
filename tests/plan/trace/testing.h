// What the tests of traces and simulations share: programs written in a line an event, files that
// go away, and the texts of errors.
#pragma once

#include <gtest/gtest.h>
#include <reprise/error.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "plan/trace/trace_builder.h"
#include "tests/refusal.h"

namespace reprise::plan {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "reprise-plan-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// A TraceBuilder with shorter calls: everything that is not asked about is 10 bytes and 1
// microsecond.
class Program {
 public:
  Program& constant(const std::string& name, std::int64_t bytes = 10) {
    builder_.constant(name, bytes);
    return *this;
  }
  Program& call(const std::string& result, const std::vector<std::string_view>& arguments,
                std::int64_t bytes = 10, std::int64_t nanoseconds = 1000) {
    const TraceBuilder::Result results[] = {{.name = result, .bytes = bytes}};
    builder_.call("op", arguments, results, nanoseconds);
    return *this;
  }
  Program& view(const std::string& result, std::string_view of, std::int64_t nanoseconds = 1000) {
    const TraceBuilder::Result results[] = {{.name = result, .bytes = 10, .view_of = 0}};
    builder_.call("view", {{of}}, results, nanoseconds);
    return *this;
  }
  Program& release(std::initializer_list<std::string_view> names) {
    for (const std::string_view each : names) builder_.release(each);
    return *this;
  }
  TraceBuilder& builder() { return builder_; }
  Trace finish() { return std::move(builder_).finish(); }

 private:
  TraceBuilder builder_;
};

}  // namespace reprise::plan
