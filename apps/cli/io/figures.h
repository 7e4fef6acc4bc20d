// Figures as people read them, and tables of them: used by every command's printed output.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reprise::app {

std::string format_count(double count);       // "640", "12.3 k", "6.45 M"
std::string format_duration(double seconds);  // "0.8 s", "42 s", "3 min 12 s", "2 h 05 min"
std::string format_milliseconds(double milliseconds);  // "1.24", "41.2", "412"
// Keeps printable UTF-8 characters, and writes control characters and broken ones as \n, \t, \x1b.
std::string escape(std::string_view text);

double median(std::vector<double> values);
// The part of the whole; 1 if the whole is nothing.
double share(Bytes part, Bytes whole);

// Columns as wide as their widest cell. The first is aligned to the left, the others to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "name   value" lines, aligned. Values are escaped, for they may hold paths.
class Facts {
 public:
  void add(std::string name, const std::string& value) {
    entries_.emplace_back(std::move(name), escape(value));
  }
  std::string text() const;

 private:
  std::vector<std::pair<std::string, std::string>> entries_;
};

}  // namespace reprise::app
