// CLI11 does the work; this mends its spacing and adds the suggestion.
#include "apps/cli/commands/help.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace reprise::app {

namespace {

constexpr std::size_t kColumn = 26;

// Levenshtein's distance, one row of the table at a time.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

HelpFormatter::HelpFormatter() { column_width(kColumn); }

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return app->get_description() + "\n\n";
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
  for (auto at = text.find("\n\n\n"); at != std::string::npos; at = text.find("\n\n\n")) {
    text.erase(at, 1);
  }
  return text.substr(0, text.find_last_not_of('\n') + 2);
}

std::string nearest_option(const CLI::App& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(name.size() / 3, 1) + 1;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& long_name : option->get_lnames()) {
      const std::string candidate = "--" + long_name;
      const bool is_longer_form = name.size() > 4 && candidate.starts_with(name);
      const std::size_t distance = is_longer_form ? 0 : edit_distance(name, candidate);
      if (distance < best_distance) {
        best = candidate;
        best_distance = distance;
      }
    }
  }
  return best;
}

}  // namespace reprise::app
