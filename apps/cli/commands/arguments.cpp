// Walks the words as CLI11 will: the word after an option that takes a value is that value, however
// it is spelled.
#include "apps/cli/commands/arguments.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace reprise::app {

namespace {

using Words = std::vector<std::string>;

const CLI::App* find_command(const CLI::App& program, const Words& words) {
  if (words.empty()) return nullptr;
  const auto all = program.get_subcommands(
      [&](const CLI::App* each) { return each->get_name() == words.front(); });
  return all.empty() ? nullptr : all.front();
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }
bool is_list(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

bool looks_like_option(const std::string& word) { return word.size() > 1 && word.starts_with('-'); }

// One option of the words and what belongs to it; returns the words that it took.
std::size_t take_option(const CLI::Option& option, const Words& words, std::size_t at,
                        Words& result) {
  const std::size_t equals = words[at].find('=');
  const std::string name = words[at].substr(0, equals);
  if (is_flag(option)) {
    if (equals != std::string::npos) {
      throw UsageError(fmt::format("{} takes no value: write {} alone", name, name));
    }
    result.push_back(name);
    return 1;
  }
  result.push_back(name);
  std::size_t taken = 1;
  if (equals != std::string::npos) {
    result.push_back(words[at].substr(equals + 1));
  } else if (at + 1 < words.size()) {
    result.push_back(words[at + taken++]);
  }
  while (is_list(option) && at + taken < words.size() && !looks_like_option(words[at + taken])) {
    result.insert(result.end(), {name, words[at + taken++]});
  }
  return taken;
}

}  // namespace

Words normalised_arguments(const CLI::App& program, int argc, const char* const* argv) {
  const Words words(argv + std::min(argc, 1), argv + argc);
  const CLI::App* command = find_command(program, words);
  if (!command) return words;
  Words result;
  for (std::size_t at = 0; at < words.size();) {
    const std::string& word = words[at];
    const CLI::Option* option = word.starts_with("--") && word.size() > 2
                                    ? command->get_option_no_throw(word.substr(0, word.find('=')))
                                    : nullptr;
    if (option) {
      at += take_option(*option, words, at, result);
    } else {
      result.push_back(word);
      ++at;
    }
  }
  return result;
}

}  // namespace reprise::app
