// One flat JSON object on one line, read in place: what an operator log is made of. Logs have
// millions of such lines, and a general parser spends a microsecond on each; this one takes a
// tenth.
//
// Not taken: escapes in strings and nested objects. Neither occurs in operator logs, and both are
// refused with a reason.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace reprise::plan {

// Views into the last line given to read(). All functions throw UsageError with a reason.
class JsonLine {
 public:
  void read(std::string_view line);

  // A string or number as it stands there.
  std::string_view text(std::string_view key) const;
  // A decimal number of at least `least`, bare or in quotes.
  std::int64_t whole(std::string_view key, std::int64_t least) const;
  std::span<const std::string_view> texts(std::string_view key) const;

 private:
  struct Field {
    std::string_view key;
    std::string_view text;
    bool is_list = false;
    std::size_t begin = 0, end = 0;  // of items_, for a list
  };

  char peek();
  void expect(char wanted);
  bool next_is(char wanted);
  std::string_view string();
  std::string_view scalar();
  void value(Field& field);
  const Field& field(std::string_view key) const;

  std::string_view line_;
  std::size_t at_ = 0;
  std::vector<Field> fields_;
  std::vector<std::string_view> items_;
};

// Reads all of `text` as a decimal number; throws UsageError, naming `what`, if it is none, or one
// below `least`.
std::int64_t whole_number(std::string_view what, std::string_view text, std::int64_t least);

}  // namespace reprise::plan
