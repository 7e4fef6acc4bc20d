// Tables as text: CSV and TSV files, compressed or not.
//
// CSV is RFC 4180: fields apart by commas, lines ended by LF or CRLF; a field in double quotes may
// hold commas, line ends and, doubled, quotes. TSV knows no quoting: a tab ends a field, a line end
// a record, and a quote is a character. A byte order mark at the beginning is passed over, and so
// are empty lines.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::app {

enum class Delimited { kCsv, kTsv };

struct Record {
  std::vector<std::string> fields;
  std::size_t line = 0;  // on which it begins; the first is 1
};

// Throws UsageError "ORIGIN:LINE: ..." for quotes that are not closed or stand inside a field.
std::vector<Record> parse_delimited(std::string_view text, Delimited form,
                                    const std::string& origin);

// Reads FILE.csv, FILE.tsv, FILE.csv.gz or FILE.tsv.gz. Throws UsageError for a file that cannot be
// read or has another ending, and as above.
std::vector<Record> read_delimited(const std::filesystem::path& file);

// Whether a file's name ends as one of those.
bool is_delimited(const std::filesystem::path& file);

}  // namespace reprise::app
