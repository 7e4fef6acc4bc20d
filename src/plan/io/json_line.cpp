#include "plan/io/json_line.h"

#include <reprise/error.h>

#include <charconv>
#include <string>

namespace reprise::plan {

namespace {

[[noreturn]] void fail(const std::string& reason) { throw UsageError(reason); }

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Of a number, true, false or null.
bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' ||
         c == 'E';
}

}  // namespace

// The next character that is no space; 0 at the end.
char JsonLine::peek() {
  while (at_ < line_.size() && is_space(line_[at_])) ++at_;
  return at_ < line_.size() ? line_[at_] : '\0';
}

bool JsonLine::next_is(char wanted) {
  if (peek() != wanted) return false;
  ++at_;
  return true;
}

void JsonLine::expect(char wanted) {
  if (next_is(wanted)) return;
  const std::string found =
      at_ < line_.size() ? "'" + std::string(1, line_[at_]) + "'" : std::string("the line's end");
  fail("not a JSON object: expected '" + std::string(1, wanted) + "' at column " +
       std::to_string(at_ + 1) + ", found " + found);
}

std::string_view JsonLine::string() {
  expect('"');
  const std::size_t end = line_.find_first_of("\"\\", at_);
  if (end == std::string_view::npos) fail("not a JSON object: a string is not closed");
  if (line_[end] == '\\') fail("escapes (\\) in strings are not supported");
  const std::string_view text = line_.substr(at_, end - at_);
  at_ = end + 1;
  return text;
}

std::string_view JsonLine::scalar() {
  if (peek() == '"') return string();
  const std::size_t begin = at_;
  while (at_ < line_.size() && is_word(line_[at_])) ++at_;
  if (at_ == begin) {
    fail("not a flat JSON object: expected a string, a number or a list of them at column " +
         std::to_string(at_ + 1));
  }
  return line_.substr(begin, at_ - begin);
}

void JsonLine::value(Field& field) {
  field.is_list = next_is('[');
  if (!field.is_list) {
    field.text = scalar();
    return;
  }
  field.begin = items_.size();
  if (!next_is(']')) {
    do items_.push_back(scalar());
    while (next_is(','));
    expect(']');
  }
  field.end = items_.size();
}

void JsonLine::read(std::string_view line) {
  line_ = line;
  at_ = 0;
  fields_.clear();
  items_.clear();
  expect('{');
  if (!next_is('}')) {
    do {
      Field field;
      field.key = string();
      expect(':');
      value(field);
      fields_.push_back(field);
    } while (next_is(','));
    expect('}');
  }
  if (peek() != '\0') fail("there is more on the line than one JSON object");
}

const JsonLine::Field& JsonLine::field(std::string_view key) const {
  for (const Field& each : fields_) {
    if (each.key == key) return each;
  }
  fail("the field " + std::string(key) + " is missing");
}

std::string_view JsonLine::text(std::string_view key) const {
  const Field& found = field(key);
  if (found.is_list) fail(std::string(key) + " must be one value, not a list");
  return found.text;
}

std::int64_t JsonLine::whole(std::string_view key, std::int64_t least) const {
  return whole_number(key, text(key), least);
}

std::span<const std::string_view> JsonLine::texts(std::string_view key) const {
  const Field& found = field(key);
  if (!found.is_list) fail(std::string(key) + " must be a list");
  return std::span(items_).subspan(found.begin, found.end - found.begin);
}

std::int64_t whole_number(std::string_view what, std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least) {
    fail(std::string(what) + " is \"" + std::string(text) +
         "\": expected a whole number of at least " + std::to_string(least));
  }
  return value;
}

}  // namespace reprise::plan
