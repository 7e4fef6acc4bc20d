#include "apps/cli/experiment/delimited.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "apps/cli/experiment/gzip.h"
#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr const char* kTableRemedy = "give a file that ends in .csv, .tsv, .csv.gz or .tsv.gz";

class RecordReader {
 public:
  RecordReader(std::string_view text, Delimited form, const std::string& origin)
      : rest_(text),
        separator_(form == Delimited::kCsv ? ',' : '\t'),
        quotes_(form == Delimited::kCsv),
        origin_(origin) {
    if (rest_.starts_with(kByteOrderMark)) rest_.remove_prefix(kByteOrderMark.size());
  }

  std::vector<Record> all() {
    std::vector<Record> records;
    while (!rest_.empty()) {
      if (at_line_end()) {
        end_line();
        continue;
      }
      records.push_back(record());
    }
    return records;
  }

 private:
  Record record() {
    Record record{.fields = {}, .line = line_};
    while (true) {
      record.fields.push_back(quotes_ && rest_.starts_with('"') ? quoted_field() : plain_field());
      if (rest_.empty() || at_line_end()) break;
      rest_.remove_prefix(1);  // the separator
    }
    if (!rest_.empty()) end_line();
    return record;
  }

  std::string plain_field() {
    std::size_t length = 0;
    while (length < rest_.size() && rest_[length] != separator_ &&
           !is_line_end(rest_.substr(length))) {
      if (quotes_ && rest_[length] == '"') {
        refuse(line_,
               "a quote inside a field that does not begin with one; put the field in "
               "quotes and double those inside");
      }
      ++length;
    }
    return take(length);
  }

  std::string quoted_field() {
    const std::size_t begin = line_;
    std::string field;
    rest_.remove_prefix(1);
    while (true) {
      const std::size_t quote = rest_.find('"');
      if (quote == std::string_view::npos) refuse(begin, "a quoted field has no end; close it");
      line_ += static_cast<std::size_t>(std::count(rest_.begin(), rest_.begin() + quote, '\n'));
      field += take(quote);
      rest_.remove_prefix(1);
      if (!rest_.starts_with('"')) break;
      field += take(1);
    }
    if (!rest_.empty() && rest_.front() != separator_ && !at_line_end()) {
      refuse(line_, "text after the end of a quoted field; double the quotes inside it");
    }
    return field;
  }

  std::string take(std::size_t length) {
    std::string taken(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return taken;
  }

  static bool is_line_end(std::string_view text) {
    return text.starts_with('\n') || text.starts_with("\r\n");
  }
  bool at_line_end() const { return is_line_end(rest_); }
  void end_line() {
    rest_.remove_prefix(rest_.front() == '\r' ? 2 : 1);
    ++line_;
  }

  [[noreturn]] void refuse(std::size_t line, const char* what) const {
    throw UsageError(fmt::format("{}:{}: {}", origin_, line, what));
  }

  std::string_view rest_;
  char separator_;
  bool quotes_;
  const std::string& origin_;
  std::size_t line_ = 1;
};

struct TableEnding {
  Delimited form;
  bool compressed;
};

std::optional<TableEnding> ending_of(const fs::path& file) {
  std::string name = file.filename().string();
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool compressed = name.ends_with(".gz");
  if (compressed) name.resize(name.size() - 3);
  if (name.ends_with(".csv")) return TableEnding{Delimited::kCsv, compressed};
  if (name.ends_with(".tsv")) return TableEnding{Delimited::kTsv, compressed};
  return std::nullopt;
}

}  // namespace

std::vector<Record> parse_delimited(std::string_view text, Delimited form,
                                    const std::string& origin) {
  return RecordReader(text, form, origin).all();
}

std::vector<Record> read_delimited(const fs::path& file) {
  const auto ending = ending_of(file);
  if (!ending) {
    throw UsageError(fmt::format("{} is no table by its name; {}", file.string(), kTableRemedy));
  }
  const std::string bytes = read_file(file, kTableRemedy);
  return parse_delimited(ending->compressed ? gunzip(bytes, file.string()) : bytes, ending->form,
                         file.string());
}

bool is_delimited(const fs::path& file) { return ending_of(file).has_value(); }

}  // namespace reprise::app
