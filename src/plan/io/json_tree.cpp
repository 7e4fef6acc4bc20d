// Builds the tree from the parser's events, and counts lines as it reads.
#include "plan/io/json_tree.h"

#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace reprise::plan {
// What the parser has read so far; it looks one character ahead where a number ends.
struct Position {
  std::int64_t line = 1;
  char last = 0;
};

namespace {

using nlohmann::json;

constexpr std::size_t kDeepest = 32;
constexpr std::size_t kMostFields = 64;
constexpr std::size_t kMostValues = 1'000'000;

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, Position* position) : at_(at), position_(position) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    position_->last = *at_;
    if (*at_++ == '\n') ++position_->line;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  Position* position_;
};

// Texts of the file may hold anything, and be long: on one line, without zeros, the end kept too.
std::string printable(const std::string& text) {
  constexpr std::size_t kMost = 480, kEnd = 120;
  std::string shown;
  for (const char each : text) {
    const auto code = static_cast<unsigned char>(each);
    if (code >= 0x20 && code != 0x7f) {
      shown += each;
    } else {
      constexpr std::string_view kDigits = "0123456789abcdef";
      shown += std::string("\\u00") + kDigits[code / 16] + kDigits[code % 16];
    }
  }
  if (shown.size() <= kMost) return shown;
  // Between characters of several bytes.
  const auto is_inside = [&](std::size_t at) {
    return (static_cast<unsigned char>(shown[at]) & 0xc0) == 0x80;
  };
  std::size_t begin = kMost - kEnd, end = shown.size() - kEnd;
  while (begin > 0 && is_inside(begin)) --begin;
  while (end < shown.size() && is_inside(end)) ++end;
  return shown.substr(0, begin) + " … " + shown.substr(end);
}

[[noreturn]] void refuse_at(const std::string& origin, std::int64_t line,
                            const std::string& reason) {
  throw UsageError(origin + ":" + std::to_string(line) + ": " + printable(reason));
}

}  // namespace

class JsonTreeBuilder final : public nlohmann::json_sax<json> {
 public:
  JsonTreeBuilder(const std::string& origin, const Position& position)
      : origin_(std::make_shared<const std::string>(origin)), position_(position) {}

  JsonTree take() { return std::move(root_); }

  bool null() override { return add(JsonTree::Kind::kNull), true; }
  bool boolean(bool value) override {
    add(JsonTree::Kind::kBoolean).is_true_ = value;
    return true;
  }
  bool number_integer(number_integer_t value) override { return number(value, true, value); }
  bool number_unsigned(number_unsigned_t value) override {
    const bool fits = value <= static_cast<std::uint64_t>(INT64_MAX);
    return number(static_cast<double>(value), fits, fits ? static_cast<std::int64_t>(value) : 0);
  }
  bool number_float(number_float_t value, const string_t&) override {
    const bool is_whole = std::floor(value) == value && std::abs(value) < 1e15;
    return number(value, is_whole, is_whole ? static_cast<std::int64_t>(value) : 0);
  }
  bool string(string_t& value) override {
    add(JsonTree::Kind::kText).text_ = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonTree::Kind::kObject); }
  bool key(string_t& name) override {
    JsonTree& object = *open_.back();
    if (std::find(object.names_.begin(), object.names_.end(), name) != object.names_.end()) {
      refuse_at(*origin_, position_.line, name + " is given twice");
    }
    if (object.names_.size() == kMostFields) {
      refuse_at(*origin_, position_.line,
                "an object has more than " + std::to_string(kMostFields) + " fields");
    }
    object.names_.push_back(std::move(name));
    key_line_ = position_.line;
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(JsonTree::Kind::kList); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    // "[json.exception.…] parse error at line 3, column 4: reason", or no such place
    std::string text = error.what();
    const std::size_t place = text.find(": "), kind = text.find("] ");
    if (place != std::string::npos)
      text.erase(0, place + 2);
    else if (kind != std::string::npos)
      text.erase(0, kind + 2);
    refuse_at(*origin_, line_of_value(true), text);
  }

 private:
  std::int64_t line_of_value(bool looked_ahead) const {
    return position_.line - (looked_ahead && position_.last == '\n' ? 1 : 0);
  }

  JsonTree& add(JsonTree::Kind kind) {
    if (++values_ > kMostValues) {
      refuse_at(*origin_, position_.line,
                "more than " + std::to_string(kMostValues) + " values in all");
    }
    JsonTree* added = &root_;
    std::string path;
    std::int64_t line = line_of_value(kind == JsonTree::Kind::kNumber);
    if (!open_.empty()) {
      JsonTree& parent = *open_.back();
      if (parent.kind_ == JsonTree::Kind::kObject) {
        path = parent.path_ + (parent.path_.empty() ? "" : ".") + parent.names_.back();
        line = key_line_;
      } else {
        path = parent.path_ + "[" + std::to_string(parent.items_.size()) + "]";
      }
      added = &parent.items_.emplace_back();
    }
    added->kind_ = kind;
    added->path_ = std::move(path);
    added->line_ = line;
    added->origin_ = origin_;
    return *added;
  }
  bool number(double value, bool is_whole, std::int64_t whole) {
    JsonTree& tree = add(JsonTree::Kind::kNumber);
    tree.number_ = value;
    tree.is_whole_ = is_whole;
    tree.whole_ = whole;
    return true;
  }
  bool open(JsonTree::Kind kind) {
    if (open_.size() == kDeepest) {
      refuse_at(*origin_, position_.line,
                "nested deeper than " + std::to_string(kDeepest) + " levels");
    }
    // Items of a list do not move while one of them is open: only the last is ever added to.
    open_.push_back(&add(kind));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::shared_ptr<const std::string> origin_;
  const Position& position_;
  JsonTree root_;
  std::vector<JsonTree*> open_;
  std::int64_t key_line_ = 1;
  std::size_t values_ = 0;
};

JsonTree JsonTree::parse(std::string_view text, const std::string& origin) {
  if (text.size() > kMostText) {
    throw UsageError(origin + ": " + std::to_string(text.size()) + " bytes of text; at most " +
                     std::to_string(kMostText) + " are read");
  }
  Position position;
  JsonTreeBuilder builder(origin, position);
  json::sax_parse(CountingIterator(text.data(), &position),
                  CountingIterator(text.data() + text.size(), &position), &builder);
  return builder.take();
}

void JsonTree::refuse(const std::string& reason) const {
  refuse_at(*origin_, line_, path_.empty() ? reason : path_ + ": " + reason);
}

void JsonTree::expect(Kind kind, const char* what) const {
  if (kind_ != kind) refuse(std::string("must be ") + what);
}

const JsonTree* JsonTree::find(std::string_view field) const {
  expect(Kind::kObject, "an object");
  const auto name = std::find(names_.begin(), names_.end(), field);
  return name == names_.end() ? nullptr : &items_[static_cast<std::size_t>(name - names_.begin())];
}

const JsonTree& JsonTree::at(std::string_view field) const {
  const JsonTree* found = find(field);
  if (found == nullptr) refuse("the field " + std::string(field) + " is missing");
  return *found;
}

void JsonTree::allow(std::initializer_list<std::string_view> fields) const {
  expect(Kind::kObject, "an object");
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (std::find(fields.begin(), fields.end(), names_[i]) == fields.end()) {
      std::string choices;
      for (const std::string_view field : fields) {
        choices += (choices.empty() ? "" : ", ") + std::string(field);
      }
      items_[i].refuse("no such field; choose from " + choices);
    }
  }
}

const std::vector<JsonTree>& JsonTree::items() const {
  expect(Kind::kList, "an array");
  return items_;
}

const std::string& JsonTree::text() const {
  expect(Kind::kText, "a string");
  return text_;
}

bool JsonTree::boolean() const {
  expect(Kind::kBoolean, "true or false");
  return is_true_;
}

double JsonTree::number(double least, double most) const {
  expect(Kind::kNumber, "a number");
  if (!(number_ >= least) || number_ > most) {
    refuse("is " + json(number_).dump() + "; it must be between " + json(least).dump() + " and " +
           json(most).dump());
  }
  return number_;
}

std::int64_t JsonTree::whole(std::int64_t least, std::int64_t most) const {
  expect(Kind::kNumber, "a whole number");
  if (!is_whole_) refuse("is " + json(number_).dump() + "; it must be a whole number below 2^63");
  if (whole_ < least || whole_ > most) {
    refuse("is " + std::to_string(whole_) + "; it must be between " + std::to_string(least) +
           " and " + std::to_string(most));
  }
  return whole_;
}

void expect_format(const JsonTree& tree, std::string_view format, std::int64_t version) {
  const JsonTree& given = tree.at("format");
  if (given.text() != format) {
    given.refuse("is \"" + given.text() + "\"; it must be \"" + std::string(format) + "\"");
  }
  const std::int64_t found = tree.at("version").whole(1);
  if (found != version) {
    tree.at("version").refuse("is " + std::to_string(found) + "; this reprise reads version " +
                              std::to_string(version));
  }
}

}  // namespace reprise::plan
