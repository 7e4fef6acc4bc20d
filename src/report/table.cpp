// Markdown's tables, padded so that the text is a table as well.
#include <reprise/error.h>
#include <reprise/report.h>

#include <algorithm>
#include <string>

#include "report/characters.h"

namespace reprise {

namespace {

using Cells = std::vector<std::string>;

std::string cell_of(const std::string& text) {
  std::string cell;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n' || text[i] == '\r') {
      cell += ' ';
    } else if (text[i] == '|') {
      // Backslashes right before it would escape the escape.
      for (std::size_t k = i; k > 0 && text[k - 1] == '\\'; --k) cell += '\\';
      cell += "\\|";
    } else {
      cell += text[i];
    }
  }
  return cell;
}

std::string line_of(const Cells& cells, const std::vector<std::size_t>& widths,
                    const std::vector<Table::Align>& align) {
  std::string line = "|";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - characters(cells[i]), ' ');
    const bool is_left = align[i] == Table::Align::kLeft;
    line += " " + (is_left ? cells[i] + padding : padding + cells[i]) + " |";
  }
  return line + "\n";
}

void check_count(const std::string& what, std::size_t cells, std::size_t columns) {
  if (cells == columns) return;
  throw UsageError(what + " has " + std::to_string(cells) + " cell(s), and the table " +
                   std::to_string(columns) + " column(s); give one for each");
}

}  // namespace

std::string markdown(const Table& table) {
  const std::size_t columns = table.header.size();
  if (columns == 0) throw UsageError("a table without columns was asked for; give it a header");
  std::vector<Table::Align> align = table.align;
  if (align.empty()) {
    align.assign(columns, Table::Align::kRight);
    align[0] = Table::Align::kLeft;
  }
  check_count("the alignment", align.size(), columns);

  std::vector<Cells> lines(1);
  std::ranges::transform(table.header, std::back_inserter(lines[0]), cell_of);
  for (const Cells& row : table.rows) {
    check_count("row " + std::to_string(lines.size()), row.size(), columns);
    std::ranges::transform(row, std::back_inserter(lines.emplace_back()), cell_of);
  }
  std::vector<std::size_t> widths(columns, 3);
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < columns; ++i) widths[i] = std::max(widths[i], characters(line[i]));
  }
  Cells rule;
  for (std::size_t i = 0; i < columns; ++i) {
    rule.emplace_back(widths[i], '-');
    if (align[i] == Table::Align::kRight) rule[i].back() = ':';
  }
  std::string text = line_of(lines[0], widths, align) + line_of(rule, widths, align);
  for (std::size_t i = 1; i < lines.size(); ++i) text += line_of(lines[i], widths, align);
  return text;
}

}  // namespace reprise
