// JSON of which every value knows its line, so that an error can say where it is. The parser is
// nlohmann-json's.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::plan {

class JsonTree {
 public:
  // Of a text; what is read takes many times its bytes.
  static constexpr std::size_t kMostText = std::size_t{64} << 20;

  // Throws UsageError "ORIGIN:LINE: reason" for text that is not JSON, is longer than kMostText,
  // nests deeper than 32 levels, has more than a million values or 64 fields in an object, or gives
  // a field twice.
  static JsonTree parse(std::string_view text, const std::string& origin);

  // All throw UsageError "ORIGIN:LINE: PATH: reason" for a value of another kind or out of bounds.

  // The field, which must be there.
  const JsonTree& at(std::string_view field) const;
  // Null if it is not there.
  const JsonTree* find(std::string_view field) const;
  // Refuses fields that are not among those.
  void allow(std::initializer_list<std::string_view> fields) const;

  const std::vector<JsonTree>& items() const;
  const std::string& text() const;
  bool boolean() const;
  double number(double least, double most) const;
  std::int64_t whole(std::int64_t least,
                     std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;

  // For checks of one's own.
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  friend class JsonTreeBuilder;
  enum class Kind { kNull, kBoolean, kNumber, kText, kList, kObject };

  void expect(Kind kind, const char* what) const;

  Kind kind_ = Kind::kNull;
  bool is_true_ = false;
  bool is_whole_ = false;
  std::int64_t whole_ = 0;
  double number_ = 0;
  std::string text_;
  std::vector<JsonTree> items_;
  std::vector<std::string> names_;  // of an object's items
  std::string path_;                // "stages[3].output_bytes"
  std::int64_t line_ = 1;
  std::shared_ptr<const std::string> origin_;
};

// Refuses a tree whose fields "format" and "version" are others.
void expect_format(const JsonTree& tree, std::string_view format, std::int64_t version);

}  // namespace reprise::plan
