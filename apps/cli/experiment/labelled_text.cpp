#include "apps/cli/experiment/labelled_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "apps/cli/experiment/delimited.h"

namespace reprise::app {

namespace {

struct LabelledFields {
  std::string text, second, label;
  std::string place;  // FILE:LINE
};

std::optional<std::size_t> number_of(const std::string& column) {
  std::size_t number = 0;
  const char* end = column.data() + column.size();
  const auto [stop, error] = std::from_chars(column.data(), end, number);
  if (error != std::errc() || stop != end || number == 0) return std::nullopt;
  return number;
}

// A name goes before a number, for columns may be called "1".
std::size_t index_of(const std::string& column, const TextColumns& columns, const Record& first,
                     const std::string& file) {
  if (columns.names) {
    const auto found = std::ranges::find(first.fields, column);
    if (found != first.fields.end()) {
      return static_cast<std::size_t>(found - first.fields.begin());
    }
  }
  if (const auto number = number_of(column)) return *number - 1;
  if (!columns.names) {
    throw UsageError(
        fmt::format("column '{}' is no number, and the table has no names; give the "
                    "number of a column, from 1",
                    column));
  }
  throw UsageError(fmt::format("{}:{}: no column '{}'; give one of {}, or a number from 1", file,
                               first.line, column, fmt::join(first.fields, ", ")));
}

const std::string& field(const Record& record, std::size_t index, const std::string& file) {
  if (index < record.fields.size()) return record.fields[index];
  throw UsageError(fmt::format("{}:{}: no column {}, the record has {}", file, record.line,
                               index + 1, record.fields.size()));
}

void append_fields(const std::string& file, const TextColumns& columns,
                   std::vector<LabelledFields>& all) {
  const std::vector<Record> records = read_delimited(file);
  if (records.empty()) throw UsageError(fmt::format("{} has no records; give another", file));
  const std::size_t text = index_of(columns.text, columns, records[0], file);
  const std::size_t label = index_of(columns.label, columns, records[0], file);
  std::optional<std::size_t> second;
  if (!columns.second.empty()) second = index_of(columns.second, columns, records[0], file);
  for (std::size_t i = columns.names ? 1 : 0; i < records.size(); ++i) {
    LabelledFields fields{.text = field(records[i], text, file),
                          .second = second ? field(records[i], *second, file) : "",
                          .label = field(records[i], label, file),
                          .place = fmt::format("{}:{}", file, records[i].line)};
    if (fields.label.empty()) {
      throw UsageError(fmt::format("{}: the label is empty; leave the record out", fields.place));
    }
    all.push_back(std::move(fields));
  }
}

std::vector<LabelledFields> fields_of(const std::vector<std::string>& files,
                                      const TextColumns& columns) {
  std::vector<LabelledFields> all;
  for (const std::string& file : files) append_fields(file, columns, all);
  return all;
}

LabelledText with_labels(std::vector<LabelledFields> all, std::vector<std::string> labels) {
  LabelledText result{.examples = {}, .labels = std::move(labels)};
  for (LabelledFields& fields : all) {
    const auto found = std::ranges::lower_bound(result.labels, fields.label);
    if (found == result.labels.end() || *found != fields.label) {
      throw UsageError(fmt::format("{}: label '{}' is none of the training data's: {}",
                                   fields.place, fields.label, fmt::join(result.labels, ", ")));
    }
    result.examples.push_back({.text = std::move(fields.text),
                               .second = std::move(fields.second),
                               .label = static_cast<std::size_t>(found - result.labels.begin())});
  }
  return result;
}

}  // namespace

LabelledText read_labelled_text(const std::vector<std::string>& files, const TextColumns& columns) {
  std::vector<LabelledFields> all = fields_of(files, columns);
  std::set<std::string> different;
  for (const LabelledFields& fields : all) different.insert(fields.label);
  if (different.size() < 2) {
    throw UsageError(fmt::format(
        "{} has {} different label{} in column '{}'; at least 2 are needed", fmt::join(files, ", "),
        different.size(), different.size() == 1 ? "" : "s", columns.label));
  }
  return with_labels(std::move(all), {different.begin(), different.end()});
}

LabelledText read_labelled_text(const std::vector<std::string>& files, const TextColumns& columns,
                                const std::vector<std::string>& labels) {
  return with_labels(fields_of(files, columns), labels);
}

}  // namespace reprise::app
